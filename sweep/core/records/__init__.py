"""Records: the names and schemas of the files in a run directory."""
