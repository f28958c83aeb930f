"""What runs on both sides: frames, folders of jobs, files. Standard library, Python 3.9."""
