"""Muster's commands for fab: fab --list."""

from muster.deploy.cli.fab import commands

namespace = commands()
