from start import *

begin()
dist.recv(torch.ones(4), (RANK + 1) % SIZE)  # HERE WAIT
dist.send(torch.ones(4), (RANK - 1) % SIZE)
