"""The metrics of a job."""
