"""The code that only runs on hosts: the driver sends it, and never imports it."""
