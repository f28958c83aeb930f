"""What ended processes left in the memory of hosts."""
