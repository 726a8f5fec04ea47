"""`serried lab`: a throwaway Slurm for trying out jobs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serried import lab
from serried.base.errors import UsageError
from serried.base.shell import exit_on_signals, foreground
from serried.base.text import counted
from serried.cli import GroupWithHelp
from serried.views import console

if TYPE_CHECKING:
    from serried.config.definitions import Cluster


@click.group(cls=GroupWithHelp)
def command() -> None:
    """Start and stop a throwaway Slurm on this machine.

    A lab is a real Slurm with simulated nodes and GPUs, in one directory. Try a job here before it waits in
    a queue. A lab does not need root, and does not disturb a real Slurm on the same machine.

    \b
    serried lab up --nodes 2 --gpus 4     start a lab (takes a second)
    serried lab run -- sinfo              run a command in the lab
    serried lab shell                     or work in the lab; leave with exit
    serried lab kill n2                   see what a job does when a node dies
    serried lab down                      end the lab and delete its files
    """  # noqa: D301 - click wants the character itself: keep these lines


_name = click.option("--name", default=None, metavar="NAME", help="Name of the lab, if there are several.")


@command.command()
@click.option("--nodes", default=4, show_default=True, metavar="N", help="Number of nodes.")
@click.option("--gpus", type=int, metavar="G", help="GPUs on each node.  [default: 4]")
@click.option("--gpu-type", metavar="TYPE", help="GPU type, as in --gres=gpu:v100:2.")
@click.option("--cpus", type=int, metavar="C", help=f"CPUs on each node.  [default: {lab.CPUS}]")
@click.option("--memory", metavar="SIZE", help="Memory of each node.  [default: 64G]")
@click.option("--like", metavar="CLUSTER", help="Node size and partitions of a cluster's profile.")
@click.option("--accounting", is_flag=True, help="Start accounting (sacct); needs slurmdbd and MariaDB.")
@click.option("--feature", "features", multiple=True, metavar="NAME", help="Node features, for --constraint.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A line for slurm.conf.")
@click.option("--partition", "partitions", multiple=True, metavar="SPEC", help="Add a partition: 'short MaxTime=10'.")
@click.option(
    "--name",
    default=lab.DEFAULT_NAME,
    show_default=True,
    metavar="NAME",
    help="Name of the lab; several can be up at once.",
)
def up(
    *,
    name: str,
    like: str | None,
    memory: str | None,
    settings: tuple[str, ...],
    partitions: tuple[str, ...],
    **size: Any,
) -> None:
    """Start a lab.

    \b
    serried lab up
    serried lab up --nodes 8 --gpus 2 --gpu-type a100 --accounting
    serried lab up --name mine --partition 'short MaxTime=10' --set KillWait=30
    serried lab up --like narval     nodes and partitions of that profile
    """  # noqa: D301 - click wants the character itself: keep these lines
    for setting in settings:
        if "=" not in setting:
            raise UsageError(f"`--set` needs KEY=VALUE, got `{setting}`")
    lines = dict(setting.split("=", 1) for setting in settings)
    size = {key: value for key, value in {**size, "memory_mb": _memory(memory)}.items() if value is not None}
    if like:
        from serried import config

        model = config.resolve(None, (), {}, like, Path.cwd(), os.environ).cluster
        size, partitions = {**_size_of(model), **size}, (*_partitions_of(model), *partitions)
    with console.status_line("starting a lab") as line:
        started = lab.up(name, settings=lines, partitions=partitions, progress=line.update, **size)
    _warn_of_names(started)
    chosen = "" if name == lab.DEFAULT_NAME else f" --name {name}"
    console.say(f"lab `{name}` is up: {_describe(started.status())}")
    console.say(f"\n  serried lab run{chosen} -- sinfo\n  serried lab shell{chosen}")
    console.say(f"  serried lab down{'' if name == lab.DEFAULT_NAME else ' ' + name}")


def _memory(text: str | None) -> int | None:
    from serried.config import values

    try:
        return None if text is None else values.memory_part(text)
    except values.BadValue as error:
        raise UsageError(f"`--memory` {error}", hint=error.hint) from None


def _size_of(cluster: Cluster) -> dict[str, Any]:
    """The size of a lab's nodes: of the largest nodes that the cluster's profile describes."""
    described = cluster.partitions.values()
    types = (*cluster.gpu_types, *cluster.gpus)
    amounts = {
        "gpus": [cluster.gpus_per_node, *(partition.gpus for partition in described)],
        "cpus": [cluster.cpus_per_node, *(partition.cpus for partition in described)],
        "memory_mb": [partition.mem for partition in described],
    }
    known = {key: [amount for amount in listed if amount is not None] for key, listed in amounts.items()}
    size: dict[str, Any] = {key: max(listed) for key, listed in known.items() if listed}
    return {**size, "gpu_type": types[0]} if types and size.get("gpus") != 0 else size


def _partitions_of(cluster: Cluster) -> Iterator[str]:
    for partition, limits in cluster.partitions.items():
        if re.fullmatch(r"[\w.-]+", partition, re.ASCII) and partition != lab.PARTITION:
            words = [
                partition,
                *([f"MaxTime={math.ceil(limits.time / 60)}"] if limits.time else []),
                *([f"MaxNodes={limits.nodes}"] if limits.nodes else []),
                *(["Default=YES"] if partition == cluster.default_partition else []),
            ]
            yield " ".join(words)


@command.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="End all your labs, also those of killed commands.")
def down(name: str | None, *, every: bool) -> None:
    """End a lab: its jobs and daemons. Delete its directory."""
    if every:
        names = lab.down_all()
    else:
        found = lab.find(name)
        found.down()
        names = [found.name]
    for each in names:
        console.say(f"lab `{each}` is down")
    if not names:
        console.say("no lab was up")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(*, as_json: bool) -> None:
    """List your labs and the states of their nodes."""
    found = [each.status() for each in lab.labs()]
    if as_json:
        documents = [
            {
                "name": each.name,
                "directory": str(each.directory),
                "is_up": each.is_up,
                "temporary": each.temporary,
                "gpus_per_node": each.spec.gpus,
                "gpu_type": each.spec.gpu_type or None,
                "accounting": each.spec.accounting,
                "daemons": dict(each.daemons),
                "nodes": dict(each.nodes),
                "environment": {"SLURM_CONF": str(each.spec.slurm_conf)},
            }
            for each in found
        ]
        console.out_json(labs=documents)
        return
    for each in found:
        console.out(f"{each.name}  {_describe(each)}")
    if not found:
        console.say("no lab is up; start one: serried lab up")


@command.command(context_settings={"allow_interspersed_args": False})
@_name
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str | None, argv: tuple[str, ...]) -> None:
    """Run a command in a lab and exit with its status.

    If no lab is up, a lab with 4 nodes of 4 GPUs is started for this command and deleted afterwards.

    \b
    serried lab run -- srun -N2 --gpus-per-node=2 env
    serried lab run -- serried submit --nodes 2 --gpus 4 -- python train.py
    serried lab run -- pytest tests
    """  # noqa: D301 - click wants the character itself: keep these lines
    with exit_on_signals(), _lab_for(name) as found:
        sys.exit(foreground(argv, env=found.environment()))


@command.command()
@_name
def shell(name: str | None) -> None:
    """Start your shell in a lab: sbatch and squeue use its Slurm."""
    with exit_on_signals(), _lab_for(name) as found:
        program = os.environ.get("SHELL") or "/bin/sh"
        console.say(f"you are in lab `{found.name}`; leave with exit")
        sys.exit(foreground([program], env=found.environment()))


@command.command()
@_name
def env(name: str | None) -> None:
    """Print shell commands that make this shell use a lab.

    \b
    eval "$(serried lab env)"
    """  # noqa: D301 - click wants the character itself: keep these lines
    for variable, value in lab.find(name).variables.items():
        console.out(f"export {variable}={shlex.quote(value)}")


@command.command()
@click.argument("daemon")
@_name
def kill(daemon: str, name: str | None) -> None:
    """Crash a node or a daemon.

    A node (n2) dies with everything that runs on it. The daemons are slurmctld, which loses changes that it
    has not saved yet (up to 5 s), slurmdbd, mariadbd and munged.
    """
    found = lab.find(name)
    found.kill(daemon)
    console.say(f"killed `{daemon}`; restart it: {_restart(found, daemon)}")


@command.command()
@click.argument("daemon")
@_name
def stop(daemon: str, name: str | None) -> None:
    """Stop a daemon cleanly.

    slurmctld saves its state first. The jobs of a node (n2) keep running.
    """
    found = lab.find(name)
    found.stop(daemon)
    console.say(f"stopped `{daemon}`; restart it: {_restart(found, daemon)}")


@command.command()
@click.argument("daemon")
@_name
def restart(daemon: str, name: str | None) -> None:
    """Restart a node or a daemon."""
    lab.find(name).restart(daemon)
    console.say(f"restarted `{daemon}`")


@contextlib.contextmanager
def _lab_for(name: str | None) -> Iterator[lab.Lab]:
    """The lab that is up, or a temporary lab for the body."""
    lab.sweep_abandoned()
    if name is not None or any(not each.temporary for each in lab.labs()):
        yield lab.find(name)
        return
    with console.status_line("starting a lab") as line:
        made = lab.up(f"tmp-{os.getpid()}", temporary=True, progress=line.update)
    _warn_of_names(made)
    try:
        yield made
    finally:
        made.down()


def _warn_of_names(made: lab.Lab) -> None:
    if not made.spec.own_hosts:
        hint = "use `127.0.0.1` where a script uses a node's name, such as in MASTER_ADDR"
        why = "this machine does not allow mount namespaces"
        console.warning(f"jobs cannot look up the names of nodes: {why}", hint=hint)


def _restart(found: lab.Lab, daemon: str) -> str:
    return f"serried lab restart {daemon}" + ("" if found.name == lab.DEFAULT_NAME else f" --name {found.name}")


def _describe(found: lab.Status) -> str:
    spec = found.spec
    kind = f"{spec.gpu_type} " if spec.gpu_type else ""
    words = [f"{counted(spec.nodes, 'node')} with {counted(spec.gpus, f'{kind}GPU')}{' each' * (spec.nodes > 1)}"]
    words += ["accounting"] * spec.accounting
    words += ["temporary"] * found.temporary
    dead = [name for name, runs in found.daemons.items() if not runs]
    words += [f"not running: {' '.join(dead)}"] * bool(dead)
    troubled = [f"{name} {state}" for name, state in found.nodes.items() if state.endswith("*") or "down" in state]
    words += [f"Slurm reports {', '.join(troubled)}"] * bool(troubled)
    return "; ".join([*words, str(found.directory)])
