"""The commands of `muster` and `fab`. The only package that prints or exits.

words -> program -> commands: what the user wrote, spelled out; Invoke's parser; a file for each family of
commands. `fab` hands what it is given to the same program (fab.py).
"""
