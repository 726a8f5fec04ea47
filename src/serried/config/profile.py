"""The profile of a cluster: written from the scheduler's answers, and compared with them."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base import files
from serried.base.errors import SchedulerUnreachable, UsageError
from serried.config import definitions, layers, toml
from serried.config.toml import Keys, dotted
from serried.schedulers.survey import Learnt
from serried.schema.plan import Key


def text(scheduler: str, learnt: Learnt, hostname: str, when: str) -> str:
    """The profile as TOML, with comments for the facts that only people know."""
    first, dot, rest = hostname.partition(".")
    pattern = re.sub(r"\d+", "*", first) + dot + rest  # login nodes are numbered
    tables = {key: value for key, value in learnt.table.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in learnt.table.items() if key not in tables and value != []}
    known = {key: source for key, source in learnt.sources.items() if learnt.table[key] != []}
    return "\n".join(
        [
            f"# Learnt on {hostname} by `serried clusters learn`, {when}.",
            "# Check these values, and fill in the facts that the scheduler does not know.",
            f'scheduler = "{scheduler}"',
            '# title = ""',
            '# docs = "https://"',
            '# contact = ""',
            '# root = "$SCRATCH/serried"',
            '# local_disk = "$TMPDIR"',
            *(f"{toml.key(key)} = {toml.value(value)}" for key, value in values.items()),
            "",
            "# The cluster's signs: check that no other cluster has hosts of such names.",
            toml.table(("match",), {"hostname": [pattern]}),
            *(toml.table((key,), table) for key, table in tables.items()),
            toml.table(("sources",), {**known, "match": f"the name of this host, {hostname}"}),
        ]
    )


def save(name: str, text: str, environ: Mapping[str, str], *, force: bool) -> Path:
    """Write a profile to the user's folder. Raises UsageError for an existing profile and an invalid name."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"`{name}` cannot be the name of a cluster", hint="use letters, digits, `-`, `_` and `.`")
    path = layers.user_folder(environ) / layers.PROFILES / f"{name}.toml"
    if path.exists() and not force:
        raise UsageError(f"the profile `{path}` exists already", hint="pass --force to replace the profile")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)
    return path


@dataclass(frozen=True)
class ProfileDifference:
    key: str
    profile: str
    """The value in the profile."""
    origin: str
    cluster: str
    """The scheduler's value."""


@dataclass(frozen=True)
class Checked:
    name: str
    compared: int
    """The number of values that profile and scheduler have in common."""
    differences: tuple[ProfileDifference, ...]


def here(environ: Mapping[str, str]) -> str:
    """The scheduler whose commands this machine has. Raises UsageError if there is none."""
    scheduler = schedulers.here(environ)
    if scheduler is None:
        raise UsageError(schedulers.absent(environ), hint="run the command on a login node of the cluster")
    return scheduler


def learn(scheduler: str, environ: Mapping[str, str], *, asks: bool = True) -> Learnt:
    """The scheduler's facts about the cluster, or without `asks` its last answers. Raises SchedulerUnreachable."""
    survey, user = schedulers.cluster(scheduler), environ.get("USER") or environ.get("LOGNAME") or ""
    learnt = survey.learn(environ, user) if asks else survey.learn(environ, user, None)
    if learnt is None:
        command = schedulers.traits(scheduler).survey_command
        raise SchedulerUnreachable(f"`{command}` does not answer", hint=f"run `{command}` to see its error")
    return learnt


def check(name: str | None, directory: Path, environ: Mapping[str, str], *, asks: bool = True) -> Checked:
    """Compare the profile of `name`, or of this machine's cluster, with the scheduler's facts.

    Raises UsageError for an unknown cluster or one with another scheduler, and SchedulerUnreachable.
    """
    scheduler = here(environ)
    given = layers.gather(layers.find(Path(os.path.abspath(directory)), environ), {}, environ)  # noqa: PTH100
    name = name or layers.recognise(given, environ)[0]
    if name not in layers.cluster_names(given):
        raise UsageError(f"unknown cluster `{name}`", hint="`serried clusters` lists the clusters")
    settings = layers.stack(layers.with_cluster(given, name, environ, look=False), None, name)
    configured = settings.get(("clusters", name, "scheduler"))
    if configured and configured.value != scheduler:
        raise UsageError(f"`{name}` uses `{configured.value}`, and the scheduler of this machine is `{scheduler}`")
    actual = dict(definitions.check({"clusters": {name: learn(scheduler, environ, asks=asks).table}}))
    own = {place: setting for place, setting in settings.items() if place[:2] == ("clusters", name)}
    both = [place for place in own if place in actual]
    differences = []
    for place in both:
        setting = own[place]
        if not _agree(place, setting.value, actual[place]):
            show = _key(place).kind.show
            values = show(setting.value), str(setting.origin), show(actual[place])
            differences.append(ProfileDifference(dotted(place[2:]), *values))
    # Partitions that the profile describes and the scheduler does not list.
    listed = {place[3] for place in actual if place[2:3] == ("partitions",)}
    described = {place[3]: setting.origin for place, setting in own.items() if place[2:3] == ("partitions",)}
    for partition, origin in described.items():
        if listed and partition not in listed:
            key = dotted(("partitions", partition))
            differences.append(ProfileDifference(key, "described", str(origin), "not there"))
    return Checked(name, len(both), tuple(differences))


def _agree(place: Keys, profile: Any, cluster: Any) -> bool:
    if place[-1] == "accounts":
        return any(fnmatch.fnmatchcase(account, pattern) for account in cluster for pattern in profile)
    return set(profile) == set(cluster) if isinstance(profile, tuple) else bool(profile == cluster)


def _key(place: Keys) -> Key:
    table = definitions.ROOT
    for part in place[:-1]:
        table = table.table(part) or definitions.Table()
    return table.keys[place[-1]]
