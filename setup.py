"""What pyproject.toml cannot say: files of the top folder that lie in the package `muster` of a wheel."""

from setuptools import setup
from setuptools.command.build_py import build_py

Group = tuple[str, str, str, list[str]]
"""The package of files, their folder here, their folder in the wheel, and their names."""
BESIDE = [".dockerignore", "compose.yaml", "fabfile.py"]
"""Where deploy/, docker/ and ansible/ look for them: in the folder that these lie in, here and in a wheel."""


class BuildWithFilesBeside(build_py):  # type: ignore[misc]  # setuptools has no types for it
    """setuptools' own step, with one more group of data files: for a wheel, and for the list of an sdist."""

    def _get_data_files(self) -> list[Group]:
        return [*super()._get_data_files(), self._beside()]

    def get_data_files_without_manifest(self) -> list[Group]:
        return [*super().get_data_files_without_manifest(), self._beside()]

    def _beside(self) -> Group:
        return ("muster", "", f"{self.build_lib}/muster", BESIDE)


setup(cmdclass={"build_py": BuildWithFilesBeside})
