from start import *

dist.init_process_group("gloo", world_size=SIZE + (RANK == 2), rank=RANK)  # WAIT HERE
dist.barrier()
