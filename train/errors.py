"""The one kind of error that is the user's to fix."""


class TrainError(Exception):
    """Plain lines that say what is wrong and what to do; ends the job with status 2, without a traceback."""
