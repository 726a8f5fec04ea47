"""What a smoke test has tried, by what the training library has left."""

from __future__ import annotations

from serried.fs.files import read_json
from serried.protocol import names
from serried.records.record import Record


def tried_out(record: Record, element: int | None) -> str:
    """In words; only what was seen to be done is said to be done."""
    if element is None and record.summary.elements is not None:
        return "each task tells what it tried"
    found = read_json(record.where.element(element).results / names.SMOKE_FILE)
    if found is None:
        return "nothing says that the program made it one: is it one with `serried.train`, and did it get so far?"
    step, own, proof = found.get("loaded_step"), found.get("own_step"), "nothing was saved"
    if step is not None:
        proof = f"the checkpoint of step {step} was saved and loaded"
    elif own is not None:
        proof = f"the program saved step {own} itself, and whether that loads was not tried"
    return f"steps made: {found.get('steps')}; {proof}"
