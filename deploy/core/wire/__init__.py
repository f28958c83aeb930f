"""The code of both sides: frames, folders of jobs, files. Standard library, Python 3.9."""
