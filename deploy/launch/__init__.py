"""Does what a plan says, and watches it to its end.

mpirun's exit status is not believed (5.0 may exit 0 when a host dies): a launch has succeeded when every
planned rank has started where it was planned, and has reported an end with status 0. The first thing that
goes wrong ends the job on every host, whether or not the others would ever notice.
"""
