"""A run that has ended does not wait for the process group that DDP's reducer holds."""

from __future__ import annotations

import gc
import weakref

import torch

from sweep.core.cells.parallelism import Parallelism
from tests.trainer.cells import cell
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainer.torch_private.preflight import fake_process_group


def test_ddps_reducer_outlives_the_model_so_that_python_never_waits_for_its_process_group() -> None:
    made = cell(gpus=2, parallelism=Parallelism(dp_replicate=2))
    with fake_process_group(0, 2):
        model = parallelize(made, build_mesh(made.parallelism, 2, "cpu"), torch.device("cpu"))
        reducer = weakref.ref(model.stages[0].reducer)
    del model
    gc.collect()
    assert reducer() is not None
