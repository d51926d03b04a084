"""Positions of a context-parallel rank."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

from trainer.parallel.context_parallel import positions_of
from trainer.parallel.micro_batches import SequenceShard


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_positions_are_balanced_as_torchs_ring_attention_has_them(degree: int) -> None:
    seq_len = 24
    ours = torch.cat([positions_of(seq_len, degree, rank) for rank in range(degree)])
    theirs = _HeadTailLoadBalancer(seq_len, degree, "cpu")._generate_indices()
    assert theirs is not None
    assert ours.tolist() == theirs[0].tolist()


def test_every_rank_attends_to_as_many_positions() -> None:
    work = {sum(int(position) + 1 for position in positions_of(48, 4, rank)) for rank in range(4)}
    assert len(work) == 1


def test_inputs_and_targets_are_cut_alike() -> None:
    tokens = torch.arange(9).repeat(2, 1)
    inputs, targets = SequenceShard(positions=positions_of(8, 2, 0)).split(tokens)
    assert inputs[1].tolist() == [0, 1, 6, 7]
    assert targets[1].tolist() == [1, 2, 7, 8]
    inputs, targets = SequenceShard(positions=None).split(tokens)
    assert (inputs.shape, targets.shape) == ((2, 8), (2, 8))
