"""Hands Muster's tasks to `fab`."""

from fabric.main import program

from muster.deploy.tasks import namespace
from muster.deploy.tasks.words import read_words

read_words(program, namespace)
