"""A job from its first attempt to its last, and from afar."""
