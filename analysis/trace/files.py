"""The text of ``profile-<node>.json`` and its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.trace.record import NodeProfile
from sweep.core.encoding.codec import plain
from sweep.core.encoding.record import parse_object, read_fields, render
from sweep.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.trace.record import RankProfile

KIND = "profile"


def profile_path(folder: Path, node: str) -> Path:
    """Where the profile of a node's ranks belongs."""
    return folder / f"profile-{node}.json"


def write_profile(path: Path, profile: NodeProfile) -> None:
    """Put a node's profile in its place, whole.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_profile(profile))


def render_profile(profile: NodeProfile) -> str:
    """A node's profile as the text of its file."""
    body = {"ranks": [_plain_rank(rank) for rank in profile.ranks], "failures": list(map(plain, profile.failures))}
    return render(KIND, plain(profile) | body)


def parse_profile(text: str) -> NodeProfile:
    """A node's profile from the text of its file.

    Raises:
        RecordError: If it is damaged, of another kind, or of another schema version.
    """
    data = parse_object(text, KIND)
    return NodeProfile(**read_fields(NodeProfile, data, KIND))


def _plain_rank(rank: RankProfile) -> dict[str, Any]:
    return plain(rank) | {"steps": list(map(plain, rank.steps)), "groups": list(map(plain, rank.groups))}
