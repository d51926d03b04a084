"""Local processes: the scheduler port on one machine."""
