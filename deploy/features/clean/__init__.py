"""What jobs leave on hosts: removes folders of old jobs, and notes what stays in memory."""
