"""From pieces of work on a timeline to the times of steps: the same for kernels of a GPU and operations of a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.trace.describe import Description
from analysis.trace.groups import Dimension
from analysis.trace.reading.collect import CLASSES
from analysis.trace.reading.intervals import Spans, lengths_between_ns, merge, subtract, union
from analysis.trace.reading.intervals import Times as Column
from analysis.trace.reading.names import COMPUTE_CLASSES, COPY_CLASSES, WorkClass
from analysis.trace.record import CommKernels, Times

COMM = CLASSES.index(WorkClass.COMM)
COMPUTE = np.array([CLASSES.index(item) for item in COMPUTE_CLASSES])
COPIES = np.array([CLASSES.index(item) for item in COPY_CLASSES])


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledStep:
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
    steps: Sequence[ProfiledStep]
    edges: Column
    whole: tuple[int, int]

    def times(self) -> tuple[Times, tuple[Times, ...]]:
        """The times of the whole, and of each step."""
        sets = _Sets.of(self)
        everything = np.zeros(len(self.starts), dtype=np.int64)
        (whole,) = self._windows(sets, [None], np.array(self.whole, dtype=np.int64), everything)
        return whole, self._windows(sets, self.steps, self.edges, self.owners)

    def _windows(
        self, sets: _Sets, steps: Sequence[ProfiledStep | None], edges: Column, owners: Column
    ) -> tuple[Times, ...]:
        """The times of windows that lie side by side; sums are those of the work that each owns."""
        durations = self.ends - self.starts
        by_class = _sums(durations, self.classes, owners, len(CLASSES), len(steps))
        comm = (durations[sets.comm_at], owners[sets.comm_at])
        by_collective = _named_sums(*comm, sets.collectives, len(steps))
        by_dimension = _named_sums(*comm, sets.dimensions, len(steps))
        spans = np.diff(edges).tolist()
        inside = {name: lengths_between_ns(found, edges).tolist() for name, found in sets.spans.items()}
        of_collectives = {name: lengths_between_ns(found, edges).tolist() for name, found in sets.exposed_kinds.items()}
        of_dimensions = {name: lengths_between_ns(found, edges).tolist() for name, found in sets.exposed_dims.items()}
        classes = {code: CLASSES[code] for code in np.unique(self.classes).tolist()}
        made = []
        for at, step in enumerate(steps):
            class_ns: dict[str, int] = {name: int(by_class[code, at]) for code, name in classes.items()}
            beside_pipeline = inside.get("beside_pipeline")
            made.append(
                Times(
                    step=None if step is None else step.number,
                    profiled_ns=None if step is None else step.end_ns - step.start_ns,
                    span_ns=spans[at],
                    compute_ns=inside["compute"][at],
                    compute_sum_ns=sum(class_ns.get(item, 0) for item in COMPUTE_CLASSES),
                    comm_sum_ns=class_ns.get(WorkClass.COMM, 0),
                    comm_ns=inside["comm"][at],
                    exposed_ns=inside["exposed"][at],
                    copy_ns=inside["copies"][at],
                    copy_alone_ns=inside["copies_alone"][at],
                    idle_ns=spans[at] - inside["busy"][at],
                    bubble_ns=None if beside_pipeline is None else spans[at] - beside_pipeline[at],
                    class_ns=class_ns,
                    collective_ns={name: values[at] for name, values in by_collective.items()},
                    dimension_ns={name: values[at] for name, values in by_dimension.items()},
                    exposed_by_collective_ns={name: values[at] for name, values in of_collectives.items()},
                    exposed_by_dimension_ns={name: values[at] for name, values in of_dimensions.items()},
                )
            )
        return tuple(made)

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
    """The timeline's sets of intervals, made once for all windows."""

    comm_at: npt.NDArray[np.intp]
    collectives: Sequence[str]
    dimensions: Sequence[str]
    spans: Mapping[str, Spans]
    exposed_kinds: Mapping[str, Spans]
    exposed_dims: Mapping[str, Spans]

    @classmethod
    def of(cls, work: Work) -> _Sets:
        """The sets of a timeline."""

        def spans(chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Spans:
            return union(work.starts[chosen], work.ends[chosen])

        comm_at = np.flatnonzero(work.classes == COMM)
        collectives, dimensions = ([item.kind for item in work.described], [item.dimension for item in work.described])
        compute, comm, copies = (
            spans(np.isin(work.classes, COMPUTE)),
            spans(comm_at),
            spans(np.isin(work.classes, COPIES)),
        )
        found = {
            "compute": compute,
            "comm": comm,
            "copies": copies,
            "exposed": subtract(comm, compute),
            "copies_alone": subtract(copies, merge(compute, comm)),
            "busy": merge(compute, comm, copies),
        }
        is_pipeline = np.array([item is Dimension.PP for item in dimensions], dtype=bool)
        if is_pipeline.any():
            found["beside_pipeline"] = merge(compute, copies, spans(comm_at[~is_pipeline]))

        def exposed(labels: Sequence[str]) -> dict[str, Spans]:
            column = np.array(labels, dtype=object)
            return {str(name): subtract(spans(comm_at[column == name]), compute) for name in sorted(set(labels))}

        return cls(
            comm_at=comm_at,
            collectives=collectives,
            dimensions=dimensions,
            spans=found,
            exposed_kinds=exposed(collectives),
            exposed_dims=exposed(dimensions),
        )


def _sums(durations: Column, rows: Column, owners: Column, n_rows: int, n_owners: int) -> Column:
    """The sum of durations for each row and owner; what belongs to nobody, owner -1, is left out."""
    table = np.zeros((n_rows, n_owners), dtype=np.int64)
    owned = owners >= 0
    np.add.at(table, (rows[owned], owners[owned]), durations[owned])
    return table


def _named_sums(durations: Column, owners: Column, labels: Sequence[str], n_owners: int) -> dict[str, list[int]]:
    names = sorted(set(labels))
    rows = np.array([names.index(label) for label in labels], dtype=np.int64)
    table = _sums(durations, rows, owners, len(names), n_owners).tolist()
    return dict(zip(map(str, names), table, strict=True))
