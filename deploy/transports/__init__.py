"""Ways to start a keeper on a host: over SSH, by OpenSSH's client, or here."""
