"""Programs that show what torch.distributed does on a cluster, each a module to run under any launcher.

    python -m benchmarks.tools.collectives    every collective operation, run and checked
    python -m benchmarks.tools.probe          which operation works with which type, on which device
    python -m benchmarks.tools.scaling        images per second, and how they scale

operations.py has the operations and their right results, measure.py runs one.
"""
