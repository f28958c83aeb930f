"""What the kernels of hosts say of a job."""
