from __future__ import annotations

import json
import re

import pytest

from sweep.core.cells.device import Device
from sweep.core.encoding.codec import build
from sweep.core.encoding.plain import plain

H200 = Device(
    name="h200",
    type="cuda",
    match=("NVIDIA H200",),
    unlike=("NVL", "MIG"),
    peak_tflops={"bf16": 989.0},
    memory_gib=141.0,
    compute_capability=(9, 0),
    source="data sheet",
)


@pytest.mark.parametrize(
    ("reported", "is_it"),
    [
        ("NVIDIA H200", True),
        ("nvidia h200", True),
        ("NVIDIA H200 NVL", False),
        ("NVIDIA H200 MIG 1g.18gb", False),
        ("NVIDIA H100 80GB HBM3", False),
        ("", False),
    ],
)
def test_a_device_is_known_by_what_the_driver_calls_it(reported: str, is_it: bool) -> None:
    assert H200.is_matched_by(reported) is is_it


def test_a_profile_without_a_name_to_match_takes_any_device() -> None:
    assert Device(name="cpu", type="cpu").is_matched_by("AMD EPYC 9654")


def test_a_peak_is_known_only_for_the_right_device_and_precision() -> None:
    assert H200.peak_for("bf16", "NVIDIA H200") == 989.0
    assert H200.peak_for("float8", "NVIDIA H200") is None
    assert H200.peak_for("bf16", "NVIDIA H200 NVL") is None
    assert Device(name="any", type="cpu", peak_tflops={"bf16": 1.0}).peak_for("bf16", "AMD EPYC") is None


@pytest.mark.parametrize("device", [H200, Device(name="cpu", type="cpu")], ids=["h200", "cpu"])
def test_a_device_survives_json(device: Device) -> None:
    assert build(Device, json.loads(json.dumps(plain(device))), "device cpu") == device


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "tpu"}, "device h200: type='tpu' is not known. Use 'cuda' or 'cpu'"),
        ({"match": "H200"}, "device h200.match='H200' is not a list"),
        ({"peak_tflops": [989]}, "device h200.peak_tflops=[989] is not a mapping"),
        ({"peak_tflops": {"bf16": "fast"}}, "device h200.peak_tflops.bf16='fast' is not a number"),
        ({"memory_gib": "plenty"}, "device h200.memory_gib='plenty' is not a number"),
        ({"colour": "green"}, "device h200 has the unknown field(s) ['colour']"),
    ],
)
def test_a_damaged_device_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build(Device, {**plain(H200), **change}, "device h200")
