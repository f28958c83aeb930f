"""Executes a plan, and watches the job to its end.

The exit status of mpirun is not trusted: 5.0 may exit with 0 when a host dies. A launch has succeeded if
every planned rank has started where it was planned and has reported an end with status 0. The first failure
ends the job on every host, even if the other hosts would never notice it.
"""
