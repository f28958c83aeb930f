"""Pages and screens of the records of a run. Pure, except for reading records and drawing."""
