"""Why a job stands still: the records of its ranks, who waits for whom, and a verdict in two lines.

gather.py asks the hosts. The rest is pure: records in, verdict out.
"""
