"""What a smoke test has tried, by what the training library has left."""

from __future__ import annotations

from serried.contract import names
from serried.contract.files import read_json
from serried.records.record import Record


def tried_out(record: Record, element: int | None) -> str:
    """In words; only what was seen to be done is said to be done."""
    if element is None and record.summary.elements is not None:
        return "each element tells what it tried"
    found = read_json(record.where.element(element).results / names.SMOKE_FILE)
    if found is None:
        return "nothing says that the program made it one: is it one with `serried.train`, and did it get so far?"
    step, steps = found.get("loaded_step"), found.get("steps")
    proof = f"the checkpoint of step {step} was saved and loaded" if step is not None else "nothing was saved"
    return f"steps made: {steps}; {proof}"
