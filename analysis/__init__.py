"""Turns the records of a run directory into the tables and figures of a paper."""
