"""The commands of `muster` and `fab`. The only package that prints or exits.

program -> parser -> commands: what runs a command line, what reads it, and a file for each family of
commands. `fab` hands its command line to the same program (fab.py).
"""
