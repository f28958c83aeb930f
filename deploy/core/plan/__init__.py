"""What a launch will do, as a value."""
