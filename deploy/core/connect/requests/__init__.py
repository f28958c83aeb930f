"""The requests to an agent: a module for each subject."""
