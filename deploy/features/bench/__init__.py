"""Measures links, collectives and hosts with programs that run as a job, and judges the figures."""
