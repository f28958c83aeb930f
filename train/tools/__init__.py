"""The programs of `muster bench`, each a module to run under any launcher.

    python -m muster.train.tools.links          the link between every two ranks (muster bench links)
    python -m muster.train.tools.sweep          collective operations over sizes, as nccl-tests have them
    python -m muster.train.tools.host_speed     what each host does on its own (muster bench hosts)

entry.py has the common options.
"""
