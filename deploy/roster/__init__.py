"""Which machines a user has, where they are listed, and what of them goes into the hosts file."""
