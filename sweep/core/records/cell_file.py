"""``cell.json``: all that an attempt is told."""

from __future__ import annotations

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import Cell, cell_id, cell_to_json
from sweep.core.cells.device import Device
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError, parse_object, read_fields, render, with_key
from sweep.core.records.layout import CELL_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFile:
    """What one attempt is to run (``cell.json``): all that the trainer is told.

    Attributes:
        cell: The cell.
        device: Profile of the device kind that the cell names.
        key: Which attempt this is.
        sources_hash: Hash of the sources that it must run; empty when the trainer is run by hand.
        run_name: Grid and cluster, for people.
    """

    cell: Cell
    device: Device
    key: AttemptKey
    sources_hash: str = ""
    run_name: str = ""

    def render(self) -> str:
        """Text of the file."""
        body = {
            "cell_id": self.key.cell_id,
            "repeat": self.key.repeat,
            "attempt": self.key.attempt,
            "sources_hash": self.sources_hash,
            "run_name": self.run_name,
            "cell": cell_to_json(self.cell),
            "device": self.device.to_json(),
        }
        return render("cell", body)

    @classmethod
    def parse(cls, text: str) -> CellFile:
        """Read the file back.

        Raises:
            RecordError: If it is damaged, or its id is not that of its cell.
        """
        values = read_fields(cls, with_key(parse_object(text, "cell")), CELL_FILE)
        file = cls(**values)
        if cell_id(file.cell) != file.key.cell_id:
            found = cell_id(file.cell)
            raise RecordError(f"cell.json says cell {file.key.cell_id} but holds cell {found}; it was altered.")
        return file
