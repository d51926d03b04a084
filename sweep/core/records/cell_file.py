"""``cell.json``: all that an attempt is told."""

from __future__ import annotations

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.cells.device import Device
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import AttemptRecord
from sweep.core.records.layout import CELL_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFile(AttemptRecord):
    """The order for one attempt (``cell.json``): everything that the trainer needs to know.

    Attributes:
        key: Which attempt this is.
        sources_hash: Hash of the sources that it must run; empty when the trainer is run by hand.
        run_name: Grid and cluster, for people.
        cell: The cell.
        device: Profile of the device kind that the cell names.
    """

    KIND = "cell"
    FILE = CELL_FILE

    key: AttemptKey
    sources_hash: str = ""
    run_name: str = ""
    cell: Cell
    device: Device

    def check(self) -> None:
        """Refuse a cell that is not the one the attempt is of.

        Raises:
            RecordError: If its id is another.
        """
        if cell_id(self.cell) != self.key.cell_id:
            found = cell_id(self.cell)
            raise RecordError(f"cell.json says cell {self.key.cell_id} but holds cell {found}; it was altered.")
