"""The facts, health and measurements of this host."""
