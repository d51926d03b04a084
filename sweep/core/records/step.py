"""A line of ``steps.jsonl``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError, read_fields, refuse_constant
from sweep.core.records.layout import STEPS_FILE

# A table reads a hundred thousand of these lines: the decoder is made once.
_STEP_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimiser step (a line of ``steps.jsonl``); times are the maximum over ranks.

    Attributes:
        step: Counts from 0.
        step_time_s: Seconds; the maximum over ranks.
        tokens: Tokens over all ranks.
        loss: Mean cross-entropy a token over the global batch, before the update.
        grad_norm: Global norm of the gradient before clipping; None where it was not computed.
        is_warmup: Whether metrics leave it out.
    """

    step: int
    step_time_s: float
    tokens: int
    loss: float | None
    grad_norm: float | None
    is_warmup: bool

    def render(self) -> str:
        """One JSON line; a loss that is not finite becomes null, which JSON can say."""
        data = asdict(self)
        for name in ("loss", "grad_norm"):
            if data[name] is not None and not math.isfinite(data[name]):
                data[name] = None
        return json.dumps(data, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str) -> Step:
        """Read one line back.

        Raises:
            RecordError: If the line is damaged.
        """
        try:
            data = _STEP_DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"a line of {STEPS_FILE} is damaged: {error}") from error
        if not isinstance(data, dict):
            raise RecordError(f"a line of {STEPS_FILE} is damaged: it is no JSON object")
        return cls(**read_fields(cls, data, f"a line of {STEPS_FILE}"))
