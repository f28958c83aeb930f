from start import *
import socket

begin()


def serve():
    server = socket.create_server(("127.0.0.1", 0))
    server.accept()  # HERE


if RANK == 0:
    serve()
dist.all_reduce(torch.ones(8))  # WAIT
