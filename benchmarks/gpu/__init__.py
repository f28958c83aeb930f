"""The GPU proof: everything of Muster that touches a GPU, run and measured by one command.

    make gpu-proof                                       every part, into build/gpu-proof/
    .venv/bin/python -m benchmarks.gpu --parts card,mpi  some of them
    .venv/bin/python -m benchmarks.gpu --device cpu      the same programs on CPU tensors

A part is a module `part_NAME.py` here with a function `run(recorder, proof)`. Each part is a process of its
own with a time limit. After a failure or a time-out the next one runs, and the records so far are kept.
"""
