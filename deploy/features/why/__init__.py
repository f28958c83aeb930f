"""Why a job stalls: the records of its ranks, which rank waits for which, and a verdict in two lines.

gather.py asks the hosts. The rest is pure: records in, verdict out.
"""
