"""This machine as a cluster of one node: its GPUs and CPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from serried.schedulers.clusters import machine
from serried.schedulers.clusters.machine import Command
from serried.schedulers.survey import ASKING_SECONDS, ArrayLimits, Learnt


def describe(environ: Mapping[str, str], command: Command = machine.run) -> dict[str, Any]:
    return {"gpus_per_node": len(machine.gpus(environ, command)), "cpus_per_node": machine.cpus(environ)}


def own_name(
    environ: Mapping[str, str],  # noqa: ARG001 - another machine that reads the record has none of its jobs
    command: Command = machine.run,  # noqa: ARG001
    *,
    seconds: float = ASKING_SECONDS,  # noqa: ARG001
) -> str:
    return os.uname().nodename


def array_limits(environ: Mapping[str, str], command: Command = machine.run) -> ArrayLimits:  # noqa: ARG001 - none
    return ArrayLimits()


def learn(environ: Mapping[str, str], user: str, command: Command = machine.run) -> Learnt | None:  # noqa: ARG001 - no scheduler answers
    return None


def is_throwaway(environ: Mapping[str, str]) -> bool:  # noqa: ARG001
    return False
