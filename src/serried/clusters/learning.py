"""All that a scheduler tells about itself, and the profile that can be written from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serried.clusters import machine, pbs, slurm
from serried.clusters.machine import Command

SECONDS = 20.0
"""For each question: somebody waits for the answer, and asked for it."""


@dataclass(frozen=True)
class Learnt:
    name: str
    """What the site itself calls it."""
    table: Mapping[str, Any]
    """As a profile holds it."""
    sources: Mapping[str, str]
    """By key of `table`: which command said it."""


def ask(scheduler: str, environ: Mapping[str, str], user: str, command: Command = machine.run) -> Learnt | None:
    """What the scheduler that is here says; None when it does not answer."""

    def said(*argv: str) -> str:
        return command([*argv], SECONDS, machine.without_formats(environ)) or ""

    return _ask_pbs(said) if scheduler == "pbs" else _ask_slurm(said, user)


def _ask_slurm(said: Callable[..., str], user: str) -> Learnt | None:
    table = slurm.partitions(said(*slurm.SINFO))
    if not table:
        return None
    config = said(*slurm.CONFIG)
    shown = said(*slurm.PARTITIONS)
    # Not every site lets its users read the accounts.
    qos = said(*slurm.QOS)
    accounts = slurm.accounts(said(*slurm.ACCOUNTS, f"user={user}"))
    narrowed = slurm.with_qos(table, shown, qos)
    has_qos = narrowed != table
    table = {**narrowed, **slurm.configured(config)}
    sources = dict.fromkeys(table, "`sinfo`") | {"kill_wait": "`scontrol show config`"}
    sources["partitions"] += ", `sacctmgr show qos`" if has_qos else ""
    if accounts:
        table["accounts"] = accounts
        sources["accounts"] = "`sacctmgr show assoc`"
    return Learnt(slurm.cluster_name(config) or "slurm", table, {key: sources[key] for key in table})


def _ask_pbs(said: Callable[..., str]) -> Learnt | None:
    queues, server, nodes = (said(*argv) for argv in (pbs.QUEUES, pbs.SERVER, pbs.NODES))
    table = pbs.described(queues, server, nodes)
    if "partitions" not in table:
        return None
    sources = {
        "partitions": "`qstat -Q -f` and `pbsnodes -a`",
        "gpus_per_node": "`pbsnodes -a`",
        "cpus_per_node": "`pbsnodes -a`",
        "default_partition": "`qstat -B -f`",
    }
    return Learnt(pbs.server_name(server) or "pbs", table, {key: sources[key] for key in table})


def profile(scheduler: str, learnt: Learnt, hostname: str, when: str) -> str:
    """The text of a profile: what was learnt, what only people know left to be filled in."""
    tables = {key: value for key, value in learnt.table.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in learnt.table.items() if key not in tables and value != []}
    return "\n".join(
        [
            f"# Learnt on {hostname} by `serried clusters learn`, {when}.",
            "# Look it over, and fill in what only people know.",
            f'scheduler = "{scheduler}"',
            '# title = ""',
            '# docs = "https://"',
            '# contact = ""',
            '# root = "$SCRATCH/serried"',
            '# local_disk = "$TMPDIR"',
            *(f"{_key(key)} = {_value(value)}" for key, value in values.items()),
            "",
            "# How it is recognised: look whether other clusters have hosts of such names.",
            "[match]",
            f"hostname = [{json.dumps(_pattern(hostname))}]",
            *(line for key, table in tables.items() for line in _tables((key,), table)),
            "",
            "[sources]",
            *(f"{_key(key)} = {_value(source)}" for key, source in learnt.sources.items() if learnt.table[key] != []),
            f'match = "the name of this host, {_value(hostname)[1:-1]}"',
            "",
        ]
    )


def _tables(place: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    if len(inner) < len(table) or not table:
        yield ""
        yield f"[{'.'.join(map(_key, place))}]"
    yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner)
    for name, value in inner.items():
        yield from _tables((*place, name), value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    """A value as TOML, which reads text, numbers and lists as JSON writes them, in ASCII."""
    return json.dumps(value)


def _pattern(hostname: str) -> str:
    """`login*.fir.example` of `login3.fir.example`: login nodes are numbered."""
    first, dot, rest = hostname.partition(".")
    return re.sub(r"\d+", "*", first) + dot + rest
