"""How long ``analysis trace`` takes for one trace, and how much memory, beside ``json.loads`` of the same text.

The trace is that of a file given, else a made one: steps of a decoder with FSDP on one GPU, each with its operations,
annotations, launches, kernels and collectives, repeated until the file has as many events as asked (default 100,000 and
2,000,000). Every measurement is a process of its own; the time of its imports, and the memory that they take, do not
count. Both read gzip, as the profiler's files are.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = (100_000, 2_000_000)
LAYERS = 32
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel"
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)"
)
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GROUP = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1 << 20,
    "Out msg nelems": 1 << 23,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}


def _events(n_events: int) -> Iterator[str]:
    """Events in the order of time; a step has some 3,000."""
    made, step, correlation, now = 0, 0, 0, 4_458_676_416_788.066
    while made < n_events:
        begin = now
        for layer in range(LAYERS):
            yield _event("user_annotation", f"FSDP::all_gather (layers.{layer})", 1, now, 20)
            for name, stream in ((GATHER, 20), *((GEMM, 7),) * 7, *((POINTWISE, 7),) * 12):
                correlation += 1
                for op in ("aten::linear", "aten::t"):
                    stated = {
                        "External id": correlation,
                        "Sequence number": made * 7919 % 100_003,
                        "Input Dims": [[1, 4096, 4096], []],
                    }
                    yield _event("cpu_op", op, 1, now, 9.125, **stated)
                yield _event("cuda_runtime", "cudaLaunchKernel", 1, now + 3, 4.25, correlation=correlation)
                more = GROUP if stream == 20 else {}
                stated = {"correlation": correlation, "stream": stream, "device": 0, "grid": [1, 2, 3], **more}
                yield _event("kernel", name, stream, now + 30_000, 5 + made % 4001 / 1000, **stated)
                made += 4
                now += 10.125
        yield _event("user_annotation", f"ProfilerStep#{step}", 1, begin, now - begin)
        step += 1


def _event(cat: str, name: str, tid: int, ts: float, dur: float, **args: object) -> str:
    event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "args": args}
    return f'{json.dumps(event)[:-1]}, "ts": {ts:.3f}, "dur": {dur:.3f}}}'


def make(path: Path, n_events: int) -> None:
    """Write a made trace, as the profiler lays its text out."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{\n  "schemaVersion": 1,\n  "distributedInfo": {"rank": 0, "world_size": 8},\n  "traceEvents": [\n')
        for at, event in enumerate(_events(n_events)):
            file.write(("" if at == 0 else ",\n") + "  " + event)
        file.write('\n  ],\n  "traceName": "made.json"\n}\n')


def _reduce(path: Path) -> None:
    from analysis.trace.reduce import reduce_trace

    _measured(lambda: reduce_trace(path))


def _loads(path: Path) -> None:
    _measured(lambda: json.loads(gzip.decompress(path.read_bytes())))


def _fastest(path: Path) -> None:
    import msgspec

    event = msgspec.defstruct("Event", [("cat", str, "")], gc=False)
    trace = msgspec.defstruct("Trace", [("traceEvents", list[event])], gc=False)  # type: ignore[valid-type]
    decode = msgspec.json.Decoder(trace).decode
    _measured(lambda: decode(gzip.decompress(path.read_bytes())))


WAYS = {"analysis trace": _reduce, "json.loads": _loads, "gunzip and msgspec alone": _fastest}


def _measured(work: Callable[[], object]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    kept = work()
    seconds = time.process_time() - start
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    del kept
    print(f"{seconds} {peak_mib}")


def _compare(path: Path) -> None:
    found = {}
    for name in WAYS:
        command = [sys.executable, __file__, "--way", name, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, peak_mib = map(float, done.stdout.split())
        found[name] = seconds, peak_mib
    base_s, base_mib = found["json.loads"]
    for name, (seconds, peak_mib) in found.items():
        print(
            f"  {name:25} {seconds:8.2f} s CPU ({base_s / seconds:5.1f} times as fast as json.loads), "
            f"{peak_mib:8.1f} MiB above its imports ({peak_mib / base_mib:.3f} of json.loads)"
        )


def main(argv: list[str]) -> int:
    """Compare on the files given, else on made ones."""
    if argv[:1] == ["--way"]:
        WAYS[argv[1]](Path(argv[2]))
        return 0
    if argv:
        for path in map(Path, argv):
            print(path.name)
            _compare(path)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for n_events in SIZES:
            path = Path(folder) / f"rank0-{n_events}.json.gz"
            make(path, n_events)
            print(f"{n_events:,} events, {path.stat().st_size >> 20} MiB of gzip")
            _compare(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
