"""Jobs: submissions, claims, the sources and the command that a node starts."""
