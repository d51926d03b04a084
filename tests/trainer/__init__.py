"""Tests of the trainer; the modules that are no tests build cells and start real torchrun processes."""
