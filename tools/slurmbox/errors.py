"""The errors of a private Slurm."""

from __future__ import annotations


class PrivateSlurmError(Exception):
    """A request to the private Slurm failed; the message says what was asked, why it failed and what to change."""


class CannotRunHereError(PrivateSlurmError):
    """This machine or user cannot run a private Slurm (not root, not Debian, packages missing)."""


class BadRequestError(PrivateSlurmError):
    """The request is impossible on any machine."""
