"""One node's part of ``doctor --all-nodes``, its nodes played by threads of this machine."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sweep.launch import node_check
from sweep.launch.node_check import REPORT, Neighbours, describe


@pytest.fixture
def ports() -> tuple[int, int]:
    """Four ports that are free, one after the other."""
    for first in range(21000, 29000, 4):
        with socket.socket() as one, socket.socket() as last:
            try:
                one.bind(("", first))
                last.bind(("", first + 3))
            except OSError:
                continue
        return first, first + 3
    raise AssertionError("no port is free")


def nodes_of(ports: tuple[int, int], *hosts: str, address: str = "127.0.0.1") -> list[Neighbours]:
    return [Neighbours(name=host, hosts=hosts, address=address, ports=ports, job_id=ports[0]) for host in hosts]


def meet(nodes: list[Neighbours], patience_s: float = 10.0) -> dict[str, dict[str, Any]]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        found = pool.map(lambda node: node.meet(patience_s), nodes)
    return {node.name: one for node, one in zip(nodes, found, strict=True)}


def test_every_node_reaches_every_other_and_compares_clocks(ports: tuple[int, int]) -> None:
    found = meet(nodes_of(ports, "n1", "n2", "n3", "n4"))
    for report in found.values():
        assert (report["unreached"], report["unresolved"]) == ({}, {})
        assert abs(report["clock_offset_s"]) < 0.5
        assert "port_error" not in report


def test_a_node_that_does_not_come_is_named_by_the_others_once_their_patience_is_over(ports: tuple[int, int]) -> None:
    found = meet(nodes_of(ports, "n1", "n2", "n3")[:2], patience_s=1.0)
    assert {name: list(report["unreached"]) for name, report in found.items()} == {"n1": ["n3"], "n2": ["n3"]}
    assert "refused" in found["n1"]["unreached"]["n3"]


@pytest.mark.parametrize(("greeting", "why"), [(b"", "timed out"), (b"SSH-2.0 OpenSSH", "another program answers")])
def test_a_taken_port_is_named_by_its_node_and_by_those_who_meet_a_stranger_there(
    ports: tuple[int, int], greeting: bytes, why: str
) -> None:
    nodes = nodes_of(ports, "n1", "n2", "n3")
    with socket.socket() as stranger:
        stranger.bind(("", nodes[0].place_of("n2")[1]))
        stranger.listen()
        if greeting:
            threading.Thread(target=greet, args=(stranger, greeting), daemon=True).start()
        found = meet(nodes, patience_s=2.0)
    assert "in use" in found["n2"]["port_error"]
    assert [list(found[name]["unreached"]) for name in ("n1", "n2", "n3")] == [["n2"], [], ["n2"]]
    assert why in found["n1"]["unreached"]["n2"]


def greet(server: socket.socket, greeting: bytes) -> None:
    """Answer everybody who connects, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(greeting)


def test_a_node_that_has_reached_all_others_still_answers_one_that_is_slow(ports: tuple[int, int]) -> None:
    quick, slow = nodes_of(ports, "n1", "n2")
    with ThreadPoolExecutor(1) as pool, socket.socket() as server:
        server.bind(("", slow.place_of("n2")[1]))
        server.listen()
        threading.Thread(target=greet, args=(server, b"n2 0.0"), daemon=True).start()
        found = pool.submit(quick.meet, 10.0)
        time.sleep(1.0)
        assert not found.done()
        with socket.create_connection(("127.0.0.1", quick.place_of("n1")[1]), timeout=5) as peer:
            peer.sendall(b"n2")
            assert peer.recv(256).startswith(b"n1 ")
        assert found.result()["unreached"] == {}


def test_a_name_that_does_not_resolve_is_distinguished_from_a_port_that_is_closed(ports: tuple[int, int]) -> None:
    found = meet(nodes_of(ports, "n1", "n2", address="{host}.invalid"), patience_s=0.5)
    assert found["n1"]["unreached"] == {}
    assert "n2.invalid: " in found["n1"]["unresolved"]["n2"]


def test_the_report_is_printed_before_what_may_hang(
    ports: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("words")
    monkeypatch.setattr(node_check, "examine", lambda folder: {"torch": "2.13", "host": "elsewhere"})
    monkeypatch.setattr(node_check, "gpus", lambda: {"gpus": []})
    lines: list[str] = []
    (alone,) = nodes_of(ports, "n1")
    describe(tmp_path, alone, {"SLURM_JOB_GPUS": "0,1"}, patience_s=1.0, say=lines.append)
    first, second, whole = (json.loads(line.removeprefix(REPORT)) for line in lines)
    assert (first["host"], first["token"], first["slurm_gpus"]) == ("n1", "words", 2)
    assert ("torch" in first, "torch" in second, "gpus" in second) == (False, True, False)
    assert whole == {**second, "gpus": [], "is_whole": True, "host": "n1"}
