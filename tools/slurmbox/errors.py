"""What can go wrong with a private Slurm."""

from __future__ import annotations


class PrivateSlurmError(Exception):
    """Something asked of the private Slurm did not happen; the text says what, why and what to change."""


class CannotRunHereError(PrivateSlurmError):
    """This machine or user cannot run a private Slurm at all (not root, not Debian, packages missing)."""


class BadRequestError(PrivateSlurmError):
    """What was asked for cannot be, on any machine."""
