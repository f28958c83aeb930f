"""The commands of `muster` and `fab`. The only package that prints or exits.

program.py runs a command line, parser.py reads it, and each family of commands has a file. `fab` uses the
same program (fab.py).
"""
