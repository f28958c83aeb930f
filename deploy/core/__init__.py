"""What launches, watches, ends and records a job. It imports no feature."""
