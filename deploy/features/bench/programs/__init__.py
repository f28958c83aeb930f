"""The programs of `muster bench`, on muster.train: each is a module to run under any launcher.

    python -m muster.deploy.features.bench.programs.links         the link between every two ranks
    python -m muster.deploy.features.bench.programs.sweep         collectives over sizes
    python -m muster.deploy.features.bench.programs.host_speed    what each host does on its own

entry.py has the common options.
"""
