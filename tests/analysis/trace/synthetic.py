"""Small traces as the profiler writes them: a timeline is told in µs, and written as a file."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

MAIN_THREAD = 100
GLOO_THREAD = 200
NCCL_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
RCCL_GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar("
    "at::TensorIteratorBase&)::{lambda()#1}, at::detail::Array<char*, 2> >(int, {lambda()#1}, {lambda()#2})"
)
MEMCPY = "Memcpy DtoD (Device -> Device)"


class Trace:
    """A trace under construction; every time is in µs, whole or with three decimals."""

    def __init__(self, rank: int = 0, world_size: int = 2, **beside: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.beside: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "A {GPU}, {"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": []},
            **beside,
        }
        self._correlation = 1000

    def add(self, cat: str, name: str, start: float, end: float, tid: int | str, **args: Any) -> Trace:
        duration = round(end - start, 3)
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args}
        )
        return self

    def step(self, number: int, start: float, end: float) -> Trace:
        self.add("gpu_user_annotation", f"ProfilerStep#{number}", end, end + 1, 7)
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end, MAIN_THREAD)

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        *,
        launch: float | None = None,
        thread: int = MAIN_THREAD,
        cat: str = "kernel",
        stream: int = 0,
        **args: Any,
    ) -> Trace:
        """A GPU record, and its launch at a time of the CPU; without one the trace does not hold it."""
        self._correlation += 1
        if launch is not None:
            self.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, thread, correlation=self._correlation)
        return self.add(cat, name, start, end, stream, correlation=self._correlation, stream=stream, device=0, **args)

    def head(self, name: str, start: float, end: float, **args: Any) -> Trace:
        """A kernel of a step before the trace began: its launch, and so its correlation, came first."""
        return self.add("kernel", name, start, end, 0, correlation=1, stream=0, device=0, **args)

    def annotation(self, name: str, start: float, end: float, tid: int = MAIN_THREAD) -> Trace:
        return self.add("user_annotation", name, start, end, tid)

    def op(self, name: str, start: float, end: float, tid: int = MAIN_THREAD, **args: Any) -> Trace:
        return self.add("cpu_op", name, start, end, tid, **args)

    def gloo(self, kind: str, start: float, end: float, tid: int = GLOO_THREAD) -> Trace:
        return self.add("user_annotation", f"gloo:{kind}", start, end, tid)

    def text(self) -> str:
        return json.dumps({**self.beside, "traceEvents": self.events, "traceName": "t.json"}, indent=1)

    def write(self, folder: Path, name: str | None = None) -> Path:
        rank = self.beside["distributedInfo"]["rank"]
        path = folder / (name or f"rank{rank}.json.gz")
        content = self.text().encode()
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
        return path


def random_trace(seed: int) -> Trace:
    """A trace of one step on three streams, the same for the same seed; times are whole µs."""
    rng = random.Random(seed)
    trace = Trace().step(1, 1000, 2000)
    now = [5000, 5000, 5000]
    for at in range(300):
        stream = rng.choices((0, 1, 2), weights=(6, 2, 1))[0]
        name, cat = {0: (rng.choice((GEMM, POINTWISE)), "kernel"), 1: (NCCL_ALL_REDUCE, "kernel")}.get(
            stream, (MEMCPY, "gpu_memcpy")
        )
        start = now[stream] + rng.randrange(20)
        now[stream] = start + rng.randrange(1, 80 if stream == 1 else 40)
        trace.kernel(name, start, now[stream], launch=1001 + at, cat=cat, stream=7 + stream)
    return trace
