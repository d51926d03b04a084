"""From pieces of work on a timeline to the times of steps: the same for kernels of a GPU and operations of a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.trace.groups import Dimension
from analysis.trace.reading.collect import CLASSES
from analysis.trace.reading.intervals import lengths_between_ns, merge, subtract, union
from analysis.trace.reading.names import COMPUTE_CLASSES, COPY_CLASSES, WorkClass
from analysis.trace.record import CommKernels, Times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from analysis.trace.describe import Description
    from analysis.trace.reading.intervals import Spans
    from analysis.trace.reading.intervals import Times as Column

COMM = CLASSES.index(WorkClass.COMM)
COMPUTE = np.array([CLASSES.index(item) for item in COMPUTE_CLASSES])
COPIES = np.array([CLASSES.index(item) for item in COPY_CLASSES])


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step of the profiler: its number, and its time on the CPU."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Pieces of work, in any order.

    Attributes:
        starts: Start of each piece.
        ends: End of each.
        classes: Class of each, an index in :data:`CLASSES`.
        owners: Index of the step that each belongs to, -1 for none.
        described: The collectives of the pieces of class COMM, in their order.
        steps: The steps, in order.
        edges: Where the steps' windows on this timeline begin and end: one more than there are steps.
        whole: Where the whole begins and ends.
    """

    starts: Column
    ends: Column
    classes: Column
    owners: Column
    described: Sequence[Description]
    steps: Sequence[Step]
    edges: Column
    whole: tuple[int, int]

    def times(self) -> tuple[Times, tuple[Times, ...]]:
        """The times of the whole, and of each step."""
        sets = _Sets.of(self)
        everything = np.ones(len(self.starts), dtype=bool)
        whole = self._times(sets, None, np.array(self.whole, dtype=np.int64), everything)
        return whole, tuple(
            self._times(sets, step, self.edges[at : at + 2], self.owners == at) for at, step in enumerate(self.steps)
        )

    def _times(self, sets: _Sets, step: Step | None, window: Column, mine: npt.NDArray[np.bool_]) -> Times:
        def inside(spans: Spans) -> int:
            return int(lengths_between_ns(spans, window)[0])

        span = int(window[1] - window[0])
        durations = self.ends - self.starts
        by_class: dict[str, int] = {
            CLASSES[code]: int(durations[mine & (self.classes == code)].sum()) for code in sets.class_codes
        }
        comm_durations = durations[sets.comm_at] * mine[sets.comm_at]
        return Times(
            step=None if step is None else step.number,
            profiled_ns=None if step is None else step.end_ns - step.start_ns,
            span_ns=span,
            compute_ns=inside(sets.compute),
            compute_sum_ns=sum(by_class.get(item, 0) for item in COMPUTE_CLASSES),
            comm_sum_ns=by_class.get(WorkClass.COMM, 0),
            comm_ns=inside(sets.comm),
            exposed_ns=inside(sets.exposed),
            copy_ns=inside(sets.copies),
            copy_alone_ns=inside(sets.copies_alone),
            idle_ns=span - inside(sets.busy),
            bubble_ns=None if sets.beside_pipeline is None else span - inside(sets.beside_pipeline),
            class_ns=by_class,
            collective_ns=_sums(comm_durations, sets.by_collective),
            dimension_ns=_sums(comm_durations, sets.by_dimension),
            exposed_by_collective_ns={name: inside(spans) for name, spans in sets.exposed_by_collective.items()},
            exposed_by_dimension_ns={name: inside(spans) for name, spans in sets.exposed_by_dimension.items()},
        )

    def kernels(self, base_ns: int) -> CommKernels:
        """The communication's pieces, ordered by start."""
        at = np.flatnonzero(self.classes == COMM)
        order = np.lexsort((self.ends[at], self.starts[at]))  # stable: of equal ones the order of the work
        described = [self.described[index] for index in order]
        at = at[order]
        numbers = [step.number for step in self.steps]
        return CommKernels(
            step=tuple(None if owner < 0 else numbers[owner] for owner in self.owners[at].tolist()),
            start_ns=tuple((self.starts[at] - base_ns).tolist()),
            duration_ns=tuple((self.ends[at] - self.starts[at]).tolist()),
            collective=tuple(item.kind for item in described),
            dimension=tuple(item.dimension for item in described),
            group=tuple(None if item.group < 0 else item.group for item in described),
            sequence=tuple(item.sequence for item in described),
            n_bytes=tuple(item.n_bytes for item in described),
            source=tuple(item.source for item in described),
            target=tuple(item.target for item in described),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sets:
    """The timeline's sets of intervals, made once for all steps."""

    class_codes: tuple[int, ...]
    comm_at: npt.NDArray[np.intp]
    by_collective: Mapping[str, npt.NDArray[np.bool_]]
    by_dimension: Mapping[str, npt.NDArray[np.bool_]]
    compute: Spans
    comm: Spans
    copies: Spans
    exposed: Spans
    copies_alone: Spans
    busy: Spans
    beside_pipeline: Spans | None
    exposed_by_collective: Mapping[str, Spans]
    exposed_by_dimension: Mapping[str, Spans]

    @classmethod
    def of(cls, work: Work) -> _Sets:
        comm_at = np.flatnonzero(work.classes == COMM)

        def spans(chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Spans:
            return union(work.starts[chosen], work.ends[chosen])

        by_collective = _masks([item.kind for item in work.described])
        by_dimension = _masks([item.dimension for item in work.described])
        compute, comm = spans(np.isin(work.classes, COMPUTE)), spans(comm_at)
        copies = spans(np.isin(work.classes, COPIES))
        pipeline = by_dimension.get(Dimension.PP)
        return cls(
            class_codes=tuple(np.unique(work.classes).tolist()),
            comm_at=comm_at,
            by_collective=by_collective,
            by_dimension=by_dimension,
            compute=compute,
            comm=comm,
            copies=copies,
            exposed=subtract(comm, compute),
            copies_alone=subtract(copies, merge(compute, comm)),
            busy=merge(compute, comm, copies),
            beside_pipeline=None if pipeline is None else merge(compute, copies, spans(comm_at[~pipeline])),
            exposed_by_collective=_exposed(by_collective, lambda mask: spans(comm_at[mask]), compute),
            exposed_by_dimension=_exposed(by_dimension, lambda mask: spans(comm_at[mask]), compute),
        )


def _masks(labels: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
    column = np.array(labels, dtype=object)
    return {str(label): column == label for label in sorted(set(labels))}


def _exposed(
    masks: Mapping[str, npt.NDArray[np.bool_]], spans: Callable[[npt.NDArray[np.bool_]], Spans], compute: Spans
) -> dict[str, Spans]:
    return {label: subtract(spans(mask), compute) for label, mask in masks.items()}


def _sums(durations: Column, masks: Mapping[str, npt.NDArray[np.bool_]]) -> dict[str, int]:
    return {label: int(durations[mask].sum()) for label, mask in masks.items()}
