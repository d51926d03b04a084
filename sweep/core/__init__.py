"""Pure vocabulary and decisions of a sweep: standard library only, no I/O, no clock, no environment."""
