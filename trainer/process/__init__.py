"""The process: its rank, the cells that it refuses, and the files that it writes."""
