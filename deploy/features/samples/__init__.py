"""Samples of hosts and ranks while a job runs."""
