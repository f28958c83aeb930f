"""What may be asked of an agent: a module for each subject."""
