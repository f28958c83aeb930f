"""What people look at: pages and comparisons of runs, made of the records that every run keeps."""
