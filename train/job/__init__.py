"""A rank's life in a job: who it is, where the ranks meet, how they join, and how the job ends."""
