"""Limits of a user on Slurm, from associations, QoS and partitions. Parsers are pure."""

from __future__ import annotations

import contextlib
import grp
import os
from collections.abc import Collection, Mapping, Sequence

from serried.schedulers.occupancy import GROUP, JOB, USER, Quota
from serried.schedulers.slurm import site
from serried.schedulers.slurm.tres import memory_mb
from serried.schedulers.survey import Ask

ASSOCIATION_FIELDS = ("Account", "Partition", "QOS", "MaxJobs", "MaxSubmit", "MaxTRES", "MaxWall", "GrpTRES")
ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"format={','.join(ASSOCIATION_FIELDS)}")
"""Followed by `user=NAME`."""
QOS_FIELDS = ("Name", "MaxWall", "MaxJobsPU", "MaxSubmitPU", "MaxTRESPU", "MaxTRES", "GrpTRES", "GrpJobs")
QOS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={','.join(QOS_FIELDS)}")

Rows = Sequence[Mapping[str, str]]


def ask(user: str, glance: Ask) -> dict[str, str]:
    """Answers of five minutes serve. Not every site lets its users read the accounts."""
    return {
        "assoc": glance((*ASSOCIATIONS, f"user={user}")),
        "qos": glance(QOS),
        "config": glance(site.CONFIG),
        "groups": "\n".join(_own_groups()),
    }


def _own_groups() -> list[str]:
    names = []
    for group in os.getgroups():
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(group).gr_name)
    return names


def groups(text: str) -> frozenset[str]:
    return frozenset(text.split("\n")) - {""}


def associations(text: str) -> Rows:
    return [dict(zip(ASSOCIATION_FIELDS, row, strict=True)) for row in site.rows(text, len(ASSOCIATION_FIELDS))]


def hides_jobs(config: str) -> bool:
    """Whether users see their own jobs alone."""
    return "jobs" in site.setting(config, "PrivateData").split(",")


def admits(partition: Mapping[str, str], own: Rows, groups: Collection[str]) -> bool:
    """Whether a user with these associations and groups may submit to the partition, as far as that is known."""
    accounts = {row["Account"] for row in own}
    qos = {name for row in own for name in row["QOS"].split(",") if name}
    for key, mine in (("AllowGroups", groups), ("AllowAccounts", accounts), ("AllowQos", qos)):
        allowed = partition.get(key, "ALL")
        if mine and allowed not in ("ALL", "N/A", "(null)", "") and not set(allowed.split(",")) & set(mine):
            return False
    denied = set(partition.get("DenyAccounts", "").split(","))
    return not accounts or bool(accounts - denied)


def quotas(shown: Mapping[str, Mapping[str, str]], own: Rows, qos: str) -> tuple[Quota, ...]:
    """Those of the user's associations, and of each QoS that the user or a partition has."""
    listed = {row[0]: dict(zip(QOS_FIELDS, row, strict=True)) for row in site.rows(qos, len(QOS_FIELDS))}
    mine = dict.fromkeys(name for row in own for name in row["QOS"].split(","))
    found: list[Quota] = []
    for row in own:
        within = f", partition {row['Partition']}" if row["Partition"] else ""
        found += _of(f"account {row['Account']}{within}", row, ("MaxJobs", "MaxSubmit", "GrpTRES"), row["Partition"])
    for name in mine:
        if name in listed:
            found += _of(f"QoS {name}", listed[name], ("MaxJobsPU", "MaxSubmitPU", "MaxTRESPU"), qos=name)
            found += _of_group(f"QoS {name}", listed[name], qos=name)
    for partition, settings in shown.items():
        if limits := listed.get(settings.get("QoS", "")):
            found += _of(f"partition {partition}", limits, ("MaxJobsPU", "MaxSubmitPU", "MaxTRESPU"), partition)
            found += _of_group(f"partition {partition}", limits, partition)
    return tuple(dict.fromkeys(found))


def _of(
    where: str, row: Mapping[str, str], names: tuple[str, str, str], partition: str = "", qos: str = ""
) -> list[Quota]:
    """What a user may have at once, and what one job may have. `names` are those of jobs, queued jobs and resources."""
    jobs, queued, resources = (row[name] for name in names)
    user = {"jobs": jobs, "queued": queued, **_resources(resources)}
    job = {**_resources(row["MaxTRES"]), "time": str(site.seconds_of_clock(row["MaxWall"]) or "")}
    return [
        Quota(where, of, name, int(text), qos, partition)
        for of, amounts in ((USER, user), (JOB, job))
        for name, text in amounts.items()
        if text.isdecimal()
    ]


def _of_group(where: str, row: Mapping[str, str], partition: str = "", qos: str = "") -> list[Quota]:
    amounts = {"jobs": row["GrpJobs"], **_resources(row["GrpTRES"])}
    return [Quota(where, GROUP, name, int(text), qos, partition) for name, text in amounts.items() if text.isdecimal()]


def _resources(text: str) -> dict[str, str]:
    """`cpu=64,gres/gpu=4,gres/gpu:a100=2,mem=1T,node=2` in our names; the rest is left out."""
    amounts: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        ours = {"cpu": "cpus", "node": "nodes", "mem": "memory", "gres/gpu": "gpus"}.get(name)
        if name.startswith("gres/gpu:"):
            ours = f"gpus:{name.partition(':')[2]}"
        if ours:
            amounts[ours] = str(memory_mb(value)) if ours == "memory" else value
    return amounts
