"""Hands Muster's tasks to `fab`."""

from fabric.main import program

from muster.deploy.cli import namespace
from muster.deploy.cli.positional import read_words

read_words(program, namespace)
