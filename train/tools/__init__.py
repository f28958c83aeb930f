"""Tools to examine and measure a cluster, each a module to run under any launcher.

    python -m muster.train.tools.collectives    every collective operation, run and checked
    python -m muster.train.tools.probe          which operation works with which type, on which device
    python -m muster.train.tools.benchmark      images per second, and how they scale
    python -m muster.train.tools.links          the link between every two ranks (muster bench links)
    python -m muster.train.tools.sweep          collective operations over sizes, as nccl-tests have them
    python -m muster.train.tools.host_speed     what each host does on its own (muster bench hosts)

operations.py has the operations and their right results, measure.py runs one,
entry.py has the common options.
"""
