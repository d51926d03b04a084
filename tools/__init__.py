"""Tools for people who work on this project; not part of the wheel."""
