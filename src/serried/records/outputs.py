"""The outputs of a run that has a record."""

from __future__ import annotations

from serried.plan import Plan
from serried.protocol import outputs
from serried.protocol.layout import RunDirectory
from serried.protocol.outputs import Outputs, Tree
from serried.records.documents import RecordUnreadable
from serried.records.index import Selection


def trees(where: RunDirectory, plan: Plan, element: int | None = None) -> list[Tree]:
    """The working trees of a run, or of one element; none where it runs in the project itself."""
    return outputs.trees(where, plan.to_json(), element)


def of(selection: Selection, most: int | None = outputs.LOOKED) -> Outputs:
    """The outputs of a run, an array's elements' together; none where its plan cannot be read."""
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return Outputs()
    return outputs.describe(trees(selection.record.where, plan, selection.element), most)
