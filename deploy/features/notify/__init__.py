"""A command that is told of stalls and of the end of a job."""
