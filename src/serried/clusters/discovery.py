"""All that a scheduler tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serried.clusters import machine, pbs, slurm
from serried.clusters.machine import Command


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
        return command([*argv], machine.ASKING_SECONDS, machine.without_formats(environ)) or ""

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
    table = slurm.with_sizes(table, shown)
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
