"""Limits of a user on PBS, from the attributes of queues and of the server. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from serried.schedulers.occupancy import GROUP, JOB, USER, Quota
from serried.schedulers.pbs import site
from serried.schedulers.pbs.site import Attributes, first

_RESOURCES = {"ncpus": "cpus", "ngpus": "gpus", "nodect": "nodes", "mem": "memory", "walltime": "time"}
_COUNTS = {"max_run": "jobs", "max_queued": "queued"}
_OLDER = {"max_user_run": "jobs", "max_user_res.ncpus": "cpus", "max_user_res.ngpus": "gpus"}


def quotas(queues: Mapping[str, Attributes], server: Attributes, user: str) -> tuple[Quota, ...]:
    found = [*_of("the whole cluster", server, user, "")]
    for name, queue in queues.items():
        if site.is_execution(queue):
            found += _of(f"partition {name}", queue, user, name)
    return tuple(found)


def _of(where: str, attributes: Attributes, user: str, queue: str) -> Iterator[Quota]:
    for name, lines in attributes.items():
        resource = _COUNTS.get(name) or (name.startswith("max_run_res.") and _RESOURCES.get(name[12:])) or ""
        if resource:
            for of, text in _limits(lines, user):
                yield from _quota(where, of, resource, text, queue)
        elif name in _OLDER:
            yield from _quota(where, USER, _OLDER[name], first(attributes, name), queue)
        elif name.startswith("resources_max.") and name[14:] in _RESOURCES:
            yield from _quota(where, JOB, _RESOURCES[name[14:]], first(attributes, name), queue)


def _limits(lines: list[str], user: str) -> Iterator[tuple[str, str]]:
    """`[u:PBS_GENERIC=2]` is for each user, `[u:ada=5]` for one, and wins; `[o:PBS_ALL=9]` for all together."""
    limits = dict(re.findall(r"\[([uo]:[^=\]]+)=([^\]]+)\]", " ".join(lines)))
    if own := limits.get(f"u:{user}") or limits.get("u:PBS_GENERIC"):
        yield USER, own
    if together := limits.get("o:PBS_ALL"):
        yield GROUP, together


def _quota(where: str, of: str, resource: str, text: str, queue: str) -> Iterator[Quota]:
    amount: int | None = None
    if resource == "memory":
        amount = site.memory_mb(text) or None
    elif resource == "time":
        amount = site.seconds_of(text)
    elif text.isdecimal():
        amount = int(text)
    if amount is not None:
        yield Quota(where, of, resource, amount, partition=queue)
