"""Tracks the memory of a step: every storage by kind, and the storages alive at the peak.

It works on fake tensors, which have sizes and no memory, and on real ones.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch.distributed.tensor import DTensor

from trainer.torch_private import preflight as private

# Kind of a storage that is allocated without a named kind, in the forward and in the backward pass.
_FORWARD, _BACKWARD = "activations", "temporary"


class MemoryTracker(private.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Tracks storages from allocation to release while the context is entered.

    Only sizes are noted at once. The kind of a storage is often known later (a reduced buffer becomes a gradient), so
    kinds are looked up at the end.

    Args:
        granularity: The device's allocator rounds to multiples of so many bytes (512 for CUDA's).
    """

    def __init__(self, *, granularity: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._granularity = granularity
        # Numbers of storages by the address of torch's own object, which lives as long as the storage does.
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._events: list[tuple[int, int]] = []
        self._next = itertools.count()
        self._kind: str | None = None

    def __enter__(self) -> Self:
        # FSDP frees and refills its all-gathered parameters by resizing their storage, which is no tensor operation.
        self._end_resizes = private.observe_resizes(self._resized)
        return cast("Self", super().__enter__())  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __exit__(self, *raised: Any) -> None:
        self._end_resizes()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note an operation's results; an operation of a DTensor comes again with its local tensors."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in private.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return result

    @contextlib.contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """Give storages that are allocated within this kind."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def mark(self, tensors: Iterable[torch.Tensor | None], kind: str, *, only: Sequence[str] = ()) -> None:
        """Set the kind of these tensors' storages, if their present kind is in ``only`` (empty: any kind)."""
        for tensor in tensors:
            if tensor is not None:
                number = self._note(tensor)
                if number is not None and (not only or self._kinds[number] in only):
                    self._kinds[number] = kind

    def mark_living(self, before: str, kind: str) -> None:
        """Change the kind of all living storages of one kind."""
        for number in self._numbers.values():
            if self._kinds[number] == before:
                self._kinds[number] = kind

    def rename(self, before: str, kind: str) -> None:
        """Change the kind of all storages of one kind, alive or not."""
        for number, found in self._kinds.items():
            if found == before:
                self._kinds[number] = kind

    def living(self) -> dict[str, int]:
        """Bytes alive now, by kind."""
        return self._by_kind({number: self._sizes[number] for number in self._numbers.values()})

    def peak(self) -> dict[str, int]:
        """Bytes alive at the peak, by kind."""
        total = most = most_at = 0
        for index, (_, change) in enumerate(self._events):
            total += change
            if total > most:
                most, most_at = total, index
        alive: dict[int, int] = {}
        for number, change in self._events[: most_at + 1]:
            alive[number] = alive.get(number, 0) + change
        return self._by_kind(alive)

    def _by_kind(self, alive: Mapping[int, int]) -> dict[str, int]:
        sums: dict[str, int] = {}
        for number, size in alive.items():
            if size:
                sums[self._kinds[number]] = sums.get(self._kinds[number], 0) + size
        return sums

    def _note(self, tensor: torch.Tensor) -> int | None:
        if isinstance(tensor, DTensor):
            tensor = private.local_tensor(tensor)
        if tensor.device.type == "meta":
            return None
        storage = tensor.untyped_storage()
        address = private.storage_address(storage)
        number = self._numbers.get(address)
        if number is None:
            number = next(self._next)
            self._numbers[address] = number
            self._kinds[number] = self._kind or (_BACKWARD if private.is_in_backward() else _FORWARD)
            self._sizes[number] = 0
            weakref.finalize(storage, self._ended, address, number)
        self._sized(number, storage.nbytes())
        return number

    def _sized(self, number: int, n_bytes: int) -> None:
        size = -(-n_bytes // self._granularity) * self._granularity
        if size != self._sizes[number]:
            self._events.append((number, size - self._sizes[number]))
            self._sizes[number] = size

    def _ended(self, address: int, number: int) -> None:
        if self._numbers.get(address) == number:
            del self._numbers[address]
            self._events.append((number, -self._sizes[number]))
            self._sizes[number] = 0

    def _resized(self, storage: torch.UntypedStorage) -> None:
        number = self._numbers.get(private.storage_address(storage))
        if number is not None:
            self._kinds[number] = "gathered_parameters"
            self._sized(number, storage.nbytes())
