"""The training program that `torchrun` starts on every rank of a cell."""
