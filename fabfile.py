"""Hands Muster's tasks to `fab`."""

from fabric.main import program

from deploy.tasks import namespace
from deploy.tasks.words import read_words

read_words(program, namespace)
