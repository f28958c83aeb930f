"""A project's own defaults for flags: `muster.toml`, or `[tool.muster]` in pyproject.toml.

    hosts = "cluster.txt"
    np = 8

    [profiles.big]
    np = 64

The declaration of a flag checks its value here as on the command line. A launch takes every value, also those
of a profile. Other commands take hosts, runs and python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..core.connect.ownership import require_own, search_path
from ..core.errors import UsageError
from ..core.plan.flags import Flag
from ..core.text.text import nearest
from ..core.wire.files import read_regular
from ..core.wire.users import expanded
from .command import PROFILE, Declaration, Source
from .removed import replacement

NAMES = ("muster.toml", "pyproject.toml")
PROFILES = "profiles"
_WHY = "its values can run commands as you"
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")


class Setting(NamedTuple):
    """A valid value of a flag, and its place: `muster.toml:3`."""

    value: Any
    place: str


Layer = Mapping[str, Setting]
"""Settings by the names of their flags."""


@dataclass(frozen=True)
class Project:
    """The defaults of a project as they were written."""

    path: Path
    text: str
    table: Mapping[str, Any]

    @property
    def profiles(self) -> Mapping[str, Mapping[str, Any]]:
        tables = self.table.get(PROFILES, {})
        if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
            raise UsageError(f"{self.path}: a profile is a table: [{self._header(PROFILES)}.NAME]")
        return tables

    def setting(self, flag: Flag) -> Setting | None:
        """The value of one flag, outside of profiles. Other keys may be wrong."""
        keys = [key for key in self.table if _flag_name(key) == flag.name]
        return self._read(flag, keys[0], self.table[keys[0]]) if keys else None

    def layers(self, command: Declaration, profile: str) -> list[Layer]:
        """The values of a profile, if one is named, and those for all profiles: the nearest first.

        `UsageError` with every mistake in the file.
        """
        tables = self.profiles
        if profile and profile not in tables:
            listed = f"; profiles: {', '.join(tables)}" if tables else ""
            raise UsageError(
                f"--profile {profile}: {self.path} has no such profile{nearest(profile, tables)}{listed}"
            )
        problems = list[str]()
        common = {key: value for key, value in self.table.items() if key != PROFILES}
        layer = self._layer(command, common, "", problems)
        others = {
            name: self._layer(command, table, f"{PROFILES}.{name}", problems)
            for name, table in tables.items()
        }
        if problems:
            raise UsageError("\n".join(problems))
        return [*([others[profile]] if profile else []), layer]

    def _layer(
        self, command: Declaration, table: Mapping[str, Any], header: str, problems: list[str]
    ) -> Layer:
        settings = dict[str, Setting]()
        for key, value in table.items():
            try:
                flag = self._flag(command, key, header)
                if flag.name in settings:
                    raise UsageError(f"{self._place(header, key)}: {key} is given twice")
                settings[flag.name] = self._read(flag, key, value, header)
            except UsageError as error:
                problems.append(str(error))
        return settings

    def _flag(self, command: Declaration, key: str, header: str) -> Flag:
        name = _flag_name(key)
        if name in command.flags and name != PROFILE:
            return command.flags[name]
        if gone := replacement(f"launch {name}"):
            raise UsageError(f"{self._place(header, key)}: {gone}")
        names = [each.removeprefix("--") for each in command.flags if each != PROFILE]
        known = command.flag(name)
        other = known.name.removeprefix("--") if known and known.name != name else ""
        hint = f"; write {other}" if other else nearest(key, names)
        raise UsageError(f"{self._place(header, key)}: muster launch has no flag {key}{hint}")

    def _read(self, flag: Flag, key: str, value: Any, header: str = "") -> Setting:
        """The value of a flag; `UsageError` for a wrong type, or a value that no command line may have."""
        place = self._place(header, key)
        where = f"{place}, profile {header.partition('.')[2]}" if header else place
        try:
            accepted = flag.accepted(key, value)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
        return Setting(self._resolved(accepted) if flag.is_path else accepted, where)

    def _resolved(self, value: str) -> str:
        """A path in the file, which begins at the folder of the file."""
        return str(self.path.parent / expanded(value))

    def _header(self, header: str) -> str:
        return ".".join(filter(None, ["" if self.path.name == NAMES[0] else "tool.muster", header]))

    def _place(self, header: str, key: str) -> str:
        line = _line(self.text, self._header(header), key)
        return f"{self.path}:{line}" if line else str(self.path)


def _flag_name(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _line(text: str, header: str, key: str) -> int | None:
    """The line of a key, if it is on a line of its own."""
    table, header = "", re.sub(r"\s", "", header)
    for number, line in enumerate(text.splitlines(), 1):
        if begins := _TABLE.match(line):
            table = re.sub(r"[\"'\s]", "", begins[1])
        elif table == header and (named := _KEY.match(line)) and named[1] == key:
            return number
    return None


def project_of(folder: Path = Path()) -> Project | None:
    """The defaults of a folder, or of its nearest parent that has some; none of a run's folder.

    In the folder, a file that others may write is refused. In a parent, another user's is passed by, as a
    hosts file is: any user can write a file to a folder such as /tmp.
    """
    for place in search_path(folder):
        found = [project for name in NAMES if (project := _project(place / name, is_here=place == folder))]
        if len(found) > 1:
            raise UsageError(f"{found[0].path} and [tool.muster] in {found[1].path}: keep one of them")
        if found:
            require_own((found[0].path,), _WHY)
            return found[0]
    return None


def _project(path: Path, *, is_here: bool) -> Project | None:
    """The defaults in a file, if it has any."""
    try:
        if not path.exists() or not (is_here or path.stat().st_uid == os.getuid()):
            return None
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, PermissionError) and not is_here:
            return None
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if path.name != NAMES[0] and "muster" not in text:
        return None
    from ..features.packages.requirements import toml

    try:
        document = toml(text)
    except ValueError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    table = document if path.name == NAMES[0] else document.get("tool", {}).get("muster")
    return None if table is None else Project(path, text, table)


# -- on a command line --

COMMAND_LINE = "command line"


def with_defaults(
    command: Declaration, values: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Source, ...]]:
    """The values of flags with those of the project, and the source of each if the project has given any."""
    shared = [flag for flag in command.flags.values() if flag.of_project]
    project = project_of() if shared else None
    profile = values.get(PROFILE, "")
    if profile and project is None:
        raise UsageError(
            f"{PROFILE} {profile}: no muster.toml, and no [tool.muster] in a pyproject.toml, in this folder "
            "or a parent"
        )
    if project is None:
        return dict(values), ()
    if PROFILE in command.flags:
        script = values.get("--script", "")
        if script in project.profiles and not Path(script).exists():
            raise UsageError(f"{script} is not a file here, but a profile: {PROFILE} {script}")
        layers = project.layers(command, profile)
    else:
        layers = [{flag.name: setting for flag in shared if (setting := project.setting(flag))}]
    given = {name: Setting(value, COMMAND_LINE) for name, value in values.items()}
    merged = _merged(command.flags, [given, *layers])
    if not any(layers):
        return dict(values), ()
    sources = tuple(
        Source(name, value, setting.place)
        for name, settings in merged.items()
        for setting in settings
        for value in (setting.value if isinstance(setting.value, tuple) else (setting.value,))
    )
    return {name: _joined(settings) for name, settings in merged.items()}, sources


def _merged(flags: Mapping[str, Flag], layers: Sequence[Layer]) -> dict[str, list[Setting]]:
    """The settings of each flag. The first layer wins; the values of a repeated flag are joined."""
    chosen = dict[str, list[Setting]]()
    for layer in layers:
        replaced = {f"--{field.replace('_', '-')}" for name in chosen for field in flags[name].replaces}
        for name, setting in layer.items():
            if name not in chosen and name not in replaced:
                chosen[name] = [setting]
            elif name in chosen and flags[name].kind is tuple:
                chosen[name] = [setting, *chosen[name]]
    return chosen


def _joined(settings: Sequence[Setting]) -> Any:
    first, *more = (setting.value for setting in settings)
    return sum(more, first) if more else first


def mentioned(text: str, sources: Sequence[Source]) -> Iterator[str]:
    """The places of the flags that a message names, if a file has set them."""
    for source in sources:
        if source.place != COMMAND_LINE and re.search(rf"{source.flag}(?![\w-])", text):
            yield f"{source.flag}: {source.place}"
