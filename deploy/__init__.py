"""The driver: hosts file -> plan -> execute, over SSH. Runs without torch installed."""
