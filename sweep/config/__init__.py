"""Configuration: from the words of a command line to a frozen SweepSpec. Nothing else imports hydra or omegaconf."""

from sweep.config.errors import ConfigError
from sweep.config.library import available
from sweep.config.load import load, load_cluster

__all__ = ["ConfigError", "available", "load", "load_cluster"]
