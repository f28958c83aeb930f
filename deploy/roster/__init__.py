"""The machines of a user: where they are listed, and which of them go into the hosts file."""
