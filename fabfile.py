"""Hands Muster's tasks to `fab`."""

from deploy.tasks import namespace  # noqa: F401  # fab looks for this name
