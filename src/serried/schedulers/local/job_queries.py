"""`main.py ask JOB` and `main.py cancel JOB`: what a job may want to know, or to have done, about another."""

from __future__ import annotations

from collections.abc import Sequence

from serried.schedulers.local.scheduler import Local


def main(words: Sequence[str]) -> int:
    question, job = words
    if question == "cancel":
        Local().cancel([job])
        return 0
    for found in Local().poll([job]).values():
        print(found.state)
    return 0
