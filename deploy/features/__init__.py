"""What adds to a job, to an agent or to the command line: a folder each."""
