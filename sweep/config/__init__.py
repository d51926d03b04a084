"""Configuration: from the words of a command line to a frozen SweepSpec. Nothing else imports hydra or omegaconf."""

from sweep.config.errors import ConfigError
from sweep.config.library import available, grids
from sweep.config.load import load, load_cluster

__all__ = ["ConfigError", "available", "grids", "load", "load_cluster"]
