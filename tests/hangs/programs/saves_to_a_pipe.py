from start import *
import os, tempfile
begin()
model = torch.nn.Linear(8, 8)
def save():
    path = tempfile.mkdtemp() + "/model.pt"
    os.mkfifo(path)
    torch.save(model.state_dict(), path)  # HERE
if RANK == 0:
    save()
dist.barrier()  # WAIT
