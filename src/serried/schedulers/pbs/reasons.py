"""PBS's comments on jobs that wait, as sentences. Rows are tried from the top; `*` matches anything."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from serried.protocol.reasons import Reason

REASONS = (
    ("dependency", "it waits for another job to end"),
    (
        "DependencyNeverSatisfied",
        "the job that it waits for was deleted before it began, and PBS lets it wait for ever: `serried stop` ends it",
    ),
    ("held (*", "it is held; `qrls` lets it go"),
    ("Can Never Run: Not enough total nodes*", "it asks for more nodes than there are; it never starts like this"),
    (
        "Can Never Run: Insufficient amount of resource: *",
        "no node can ever give what it asks for: {rest}",
    ),
    ("Can Never Run*", "it asks for what this site cannot give; it never starts like this"),
    ("Not Running: Insufficient amount of resource: *", "what it asks for is in use: {rest}"),
    ("Not Running: Insufficient amount of queue resource*", "its queue has given out all that it may: {rest}"),
    ("Not Running: Insufficient amount of server resource*", "the whole cluster has given out all that it may: {rest}"),
    ("Not Running: User has reached queue * running job limit*", "as many of your jobs run in its queue as may"),
    ("Not Running: User has reached server * running job limit*", "as many of your jobs run as may"),
    ("Not Running: * limit*", "a limit of the site holds it back: {rest}"),
    ("Not Running: Queue not started*", "its queue starts no jobs for now"),
    ("Not Running: Job would conflict with reservation*", "it would run into a reservation; a shorter time may help"),
    ("Not Running: Job would cross dedicated time*", "it would run into a maintenance window; a shorter time may help"),
    ("Not Running: Draining system*", "an older job that waits for long goes first"),
    ("Not Running: Not enough free nodes*", "not enough nodes are free"),
    ("Not Running: No available resources*", "not enough nodes are free"),
    (
        "Job Array Began at *",
        "other tasks of its array go first: as many run as may, or nothing more is free",
    ),
    (
        "?ob held, too many failed attempts to run",
        ("PBS could not start it, again and again, and holds it for good: its nodes may not see the folder"
        " of the run, see `root` in the cluster's profile; `serried stop` ends it"),
    ),
    ("Job held*", "it is held: {rest}"),
    ("", "PBS has not looked at it yet"),
)  # fmt: skip


def explain(reason: str) -> str:
    """The comment in plain words; PBS's own, quoted, where we have none."""
    text = reason.strip()
    rest = text.partition(": ")[2].partition(": ")[2] or text.partition(": ")[2]
    for pattern, sentence in REASONS:
        if fnmatchcase(text, pattern.replace("[", "[[]")):
            return sentence.format(rest=rest)
    return f"PBS says `{text}`"


CODES: Sequence[tuple[str, Reason]] = (
    ("dependency", Reason.DEPENDENCY),
    ("DependencyNeverSatisfied*", Reason.DEPENDENCY_NEVER_SATISFIED),
    ("Can Never Run*", Reason.ABOVE_SITE_LIMIT),
    ("held (*", Reason.HELD),
    ("?ob held*", Reason.HELD),
    ("Not Running: Insufficient amount of resource: *", Reason.QUEUED),
    ("Not Running: Insufficient amount of queue resource*", Reason.SITE_LIMIT),
    ("Not Running: Insufficient amount of server resource*", Reason.SITE_LIMIT),
    ("Not Running: * limit*", Reason.SITE_LIMIT),
    ("Not Running: Queue not started*", Reason.UNAVAILABLE),
    ("Not Running: Job would c*", Reason.UNAVAILABLE),
    ("Not Running: *", Reason.QUEUED),
    ("Job Array Began at *", Reason.QUEUED),
    ("", Reason.QUEUED),
)
"""Tried from the top."""


def classify(reason: str) -> Reason | None:
    """None for a comment that is not known here."""
    return next((code for pattern, code in CODES if fnmatchcase(reason.strip(), pattern)), None)
