"""Submitting: group by resources, write the intent, hand over, record the job ids; in that order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.blame import bad_nodes, excludable
from sweep.core.attempts.ledger import Refused, Submitted
from sweep.core.decisions.plan import TO_SUBMIT, Action
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.submission import Submission, safe_name
from sweep.core.records.attempt_record import CellFile
from sweep.core.settings.site import Site
from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError
from sweep.usecases.executor import Executor, reservation
from sweep.usecases.session import Order, Origin, RunPorts

LARGEST_ARRAY = 1000
"""Tasks of one submission; Slurm's default MaxArraySize of 1001 caps the index at 1000."""
_FIRST_DELAY_S, _LONGEST_DELAY_S = 5.0, 300.0
_SHUFFLED_ARRAYS = 50
"""A shuffled order becomes about so many arrays: more would burden the scheduler, fewer would undo the shuffling."""
_MOST_REFUSALS = 6
"""Times that a submission may be refused in unknown words (over some three minutes) before that is for good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """The resources that a submission asks for; attempts of one shape are submitted together."""

    nodes: int
    gpus_per_node: int
    device: str
    walltime_min: int
    is_cut: bool
    exclude: tuple[str, ...]


class Submitter:
    """Submits the plan's new attempts, and waits before it asks a scheduler again that refused for now.

    Args:
        order: What the command asks for.
        origin: Where submissions come from.
        ports: The run's ports.
        executor: Records, and keeps what waits to be handed over.
    """

    def __init__(self, order: Order, origin: Origin, ports: RunPorts, executor: Executor) -> None:
        """Start without any delay."""
        self._order, self._origin, self._ports, self._executor = order, origin, ports, executor
        self._not_before = 0.0
        self._delay_s = _FIRST_DELAY_S
        self._most_tasks = LARGEST_ARRAY
        self._needs_every_node: set[tuple[int, int]] = set()
        self._refusals = Counter[str]()

    def submit(self, actions: Iterable[Action], site: Site) -> int:
        """Submit the actions that start an attempt; gives the number of jobs that the scheduler took."""
        if self._ports.clock.monotonic() < self._not_before or not self._hand_over_waiting():
            return 0
        taken = 0
        for shape, keys in self._groups([action for action in actions if action.kind in TO_SUBMIT], site):
            submission = self._prepare(shape, keys)
            if not self._hand_over(submission):
                break
            taken += len(keys)
        return taken

    def _hand_over_waiting(self) -> bool:
        """Try again, under its own name and numbers, what certainly did not arrive; False where the rest should wait.

        Each is looked for by its name all the same: a second job would be worse than a late one.
        """
        executor = self._executor
        for name, submission in list(executor.waiting.items()):
            if any(one.in_flight and one.is_cancel_requested for one in executor.history.submissions[name]):
                del executor.waiting[name]
                executor.release(name, "cells of it were cancelled before it was submitted")
                continue
            try:
                jobs = self._ports.scheduler.find(submission)
            except SchedulerError as error:
                return self._unreached(submission, error)
            if jobs is None and not self._hand_over(submission):
                return False
            if jobs is not None:
                self._taken(submission, jobs)
        return True

    def _groups(self, actions: Sequence[Action], site: Site) -> Iterator[tuple[_Shape, tuple[AttemptKey, ...]]]:
        """Attempts that need the same resources, at most one array's worth at a time, in the plan's order."""
        bad = self._bad_nodes() if actions else ()
        shaped = [
            (self._shape(one, bad, site), AttemptKey(cell_id=one.cell_id, repeat=one.repeat, attempt=one.attempt))
            for one in actions
        ]
        most = min(self._most_tasks, site.max_array_tasks or LARGEST_ARRAY)
        for shape, keys in _together(shaped, is_shuffled=self._order.order_seed is not None):
            for start in range(0, len(keys), most):
                yield shape, tuple(keys[start : start + most])

    def _bad_nodes(self) -> tuple[str, ...]:
        policy = self._order.policy
        return bad_nodes(
            self._ports.blame.read(),
            now=self._ports.clock.now(),
            after=policy.bad_node_after,
            expiry_h=policy.bad_node_expiry_h,
        )

    def _shape(self, action: Action, bad: tuple[str, ...], site: Site) -> _Shape:
        cell = self._order.cells[action.cell_id]
        wanted = () if (cell.nodes, cell.gpus_per_node) in self._needs_every_node else (*action.avoid, *bad)
        return _Shape(
            nodes=cell.nodes,
            gpus_per_node=cell.gpus_per_node,
            device=cell.device,
            walltime_min=action.walltime_min,
            is_cut=action.is_cut,
            exclude=excludable(wanted, known=site.nodes, usable=site.usable, needed=cell.nodes),
        )

    def _prepare(self, shape: _Shape, keys: tuple[AttemptKey, ...]) -> Submission:
        """Write what is meant, first to the submission's file and then to the ledger; nothing runs yet."""
        origin, run_dir, now = self._origin, self._ports.run_dir, self._ports.clock.now()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        submission = Submission(
            name=safe_name(f"{origin.run_name[:48]}-{stamp}-{origin.new_token()}"),
            run_dir=run_dir.path,
            created_at=now,
            tasks=keys,
            nodes=shape.nodes,
            gpus_per_node=shape.gpus_per_node,
            device_type=self._order.devices[shape.device].type,
            walltime_min=shape.walltime_min,
            is_cut=shape.is_cut,
            sources_dir=origin.sources_dir,
            sources_hash=origin.sources_hash,
            launch=self._order.cluster.launch,
            exclude=shape.exclude,
            provenance=origin.provenance,
        )
        self._executor.check_lease()
        run_dir.publish_submission(submission, map(self._cell_file, keys))
        self._executor.record(reservation(submission))
        return submission

    def _cell_file(self, key: AttemptKey) -> CellFile:
        cell = self._order.cells[key.cell_id]
        return CellFile(
            cell=cell,
            device=self._order.devices[cell.device],
            key=key,
            sources_hash=self._origin.sources_hash,
            run_name=self._origin.run_name,
        )

    def _hand_over(self, submission: Submission) -> bool:
        """Give a reserved submission to the scheduler; False where further ones should wait."""
        executor, name = self._executor, submission.name
        executor.waiting.pop(name, None)
        executor.check_lease()  # a process that was suspended since it reserved may have an heir
        try:
            jobs = self._ports.scheduler.submit(submission)
        except SubmissionRejectedError as error:
            if error.is_transient:
                return self._full(submission, error)
            if error.leaves_no_node and submission.exclude:
                self._exclude_nothing(submission, error)
                return True
            if not error.is_known and self._is_tried_again(submission, error):
                return False
            executor.record(Refused(time=self._ports.clock.now(), submission=name, reason=str(error)))
            self._ports.reporter.note(f"the scheduler refused {name}: {error}")
            return True
        except SubmissionUncertainError as error:
            return self._back_off(f"the scheduler may or may not have taken {name}: {error}. It is looked for by name")
        except SchedulerError as error:
            return self._unreached(submission, error)
        executor.contact.reached()
        self._taken(submission, jobs)
        return True

    def _is_tried_again(self, submission: Submission, error: SubmissionRejectedError) -> bool:
        """Keep a submission that was refused in unknown words, to hand it over again; False where it was too often."""
        self._refusals[submission.name] += 1
        if self._refusals[submission.name] >= _MOST_REFUSALS:
            self._delay_s = _FIRST_DELAY_S
            return False
        self._executor.waiting[submission.name] = submission
        self._back_off(f"the scheduler refused {submission.name} in words that this tool does not know: {error}")
        return True

    def _full(self, submission: Submission, error: SubmissionRejectedError) -> bool:
        """Wait for room; an array may be larger than a limit that nobody could ask for, and is halved."""
        if len(submission.tasks) == 1:
            self._executor.waiting[submission.name] = submission
        else:
            self._most_tasks = len(submission.tasks) // 2
            self._executor.release(submission.name, str(error))
        return self._back_off(f"the scheduler takes no more jobs for now: {error}")

    def _exclude_nothing(self, submission: Submission, error: SubmissionRejectedError) -> None:
        """Submit again without exclusions: the few nodes that meet a constraint may be just the excluded ones."""
        self._needs_every_node.add((submission.nodes, submission.gpus_per_node))
        self._executor.release(submission.name, str(error))
        avoided = ", ".join(submission.exclude)
        self._ports.reporter.note(f"{error} without {avoided}: the next submission does not keep away from them")

    def _taken(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        self._executor.waiting.pop(submission.name, None)
        self._executor.record(Submitted(time=self._ports.clock.now(), submission=submission.name, jobs=jobs))
        self._delay_s = _FIRST_DELAY_S
        self._most_tasks = min(2 * self._most_tasks, LARGEST_ARRAY)

    def _unreached(self, submission: Submission, error: SchedulerError) -> bool:
        """Keep what certainly did not arrive: it is the same attempt that is handed over later."""
        self._executor.waiting[submission.name] = submission
        self._executor.contact.not_reached(str(error))
        return self._back_off(f"the scheduler was not reached: {error}")

    def give_back(self, reason: str) -> None:
        """Release what still waits to be handed over."""
        for name in list(self._executor.waiting):
            del self._executor.waiting[name]
            self._executor.release(name, reason)

    def _back_off(self, text: str) -> bool:
        self._ports.reporter.note(f"{text}; trying again in {self._delay_s:.0f} s")
        self._not_before = self._ports.clock.monotonic() + self._delay_s
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
        return False


def _together(
    shaped: Sequence[tuple[_Shape, AttemptKey]], *, is_shuffled: bool
) -> list[tuple[_Shape, list[AttemptKey]]]:
    """Attempts of one shape put together; in a shuffled order only those of one round that stand near each other."""
    stretch = max(1, len(shaped))
    if is_shuffled:
        stretch = max(1, len(shaped) * len({shape for shape, _ in shaped}) // _SHUFFLED_ARRAYS)
    groups: dict[tuple[int, int, _Shape], list[AttemptKey]] = {}
    for number, (shape, key) in enumerate(shaped):
        place = (key.repeat if is_shuffled else 0, number // stretch, shape)
        groups.setdefault(place, []).append(key)
    found: list[tuple[_Shape, list[AttemptKey]]] = []
    for (_, _, shape), keys in groups.items():
        if found and found[-1][0] == shape:
            found[-1][1].extend(keys)
        else:
            found.append((shape, keys))
    return found
