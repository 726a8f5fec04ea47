"""What click says of a mistyped command line, in the words and the shape of all our errors, with what was meant."""

from __future__ import annotations

import difflib

import click

from serried.cli import VERBS
from serried.errors import UsageError
from serried.ui import console

MEANT = {
    "ps": "list ls jobs runs queue squeue sacct qstat status top watch",
    "submit": "sbatch qsub send start launch queue-up",
    "run": "exec torchrun mpirun",
    "rerun": "resume restart retry requeue continue qrerun resubmit",
    "shell": "ssh srun salloc interactive attach bash",
    "logs": "log tail output cat print follow",
    "show": "info describe inspect view plan",
    "why": "explain diagnose debug",
    "fetch": "pull download results get sync",
    "stop": "cancel kill scancel qdel abort end",
    "clean": "rm remove delete prune purge gc",
    "du": "space usage quota",
    "init": "new create template",
    "import": "convert migrate translate",
    "clusters": "cluster sinfo pbsnodes profiles partitions",
    "stage": "data upload push",
    "config": "settings get-config",
    "image": "container build",
    "env": "venv conda environment",
}
"""What people type who come from a scheduler or from another tool, by the verb that does it here."""


OPTIONS_MEANT = {
    "--mem": "mem-per-gpu pmem",
    "--ranks": "ntasks-per-node nproc-per-node nproc_per_node np ntasks",
    "--gpus": "gpus-per-node gres gpus-per-task",
    "--cpus": "cpus-per-task cpus-per-gpu ncpus",
    "--nodes": "nnodes num-nodes num_nodes",
    "--time": "walltime timeout",
    "--name": "job-name",
    "--after": "dependency",
}
"""The same for options of schedulers and launchers: spelling alone would lead to another one."""


def no_verb(word: str) -> UsageError:
    """`serried squeue`: what there is instead."""
    meant = [verb for verb, others in MEANT.items() if word.lower() in others.split()]
    meant += difflib.get_close_matches(word, VERBS, n=1) if not meant else []
    other = f"did you mean `serried {meant[0]}`? {VERBS[meant[0]]}" if meant else "serried --help lists them"
    return UsageError(f"unknown command: `{word}`", hint=other)


def _said(error: click.ClickException) -> str:
    """Click's words; its list of choices is laid out with tabs."""
    if isinstance(error, click.MissingParameter) and error.param and isinstance(error.param.type, click.Choice):
        *most, last = (f"`{choice}`" for choice in error.param.type.choices)
        return f"one of {', '.join(most)} and {last} is missing"
    return error.format_message()


def show(error: click.ClickException) -> None:
    """Print it as an error of ours: one sentence, and a hint."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "serried"
    if isinstance(error, click.NoSuchOption):
        flags = [flag for param in (context.command.params if context else ()) for flag in param.opts]
        word = error.option_name.lstrip("-")
        close = [flag for flag, others in OPTIONS_MEANT.items() if flag in flags and word in others.split()]
        close = close or difflib.get_close_matches(error.option_name, flags, n=1)
        message = f"unknown option: `{error.option_name}`"
        hint = f"did you mean `{close[0]}`?" if close else f"{path} --help lists them"
    else:
        message = " ".join(_said(error).rstrip(".").replace("'", "`").split())
        message, hint = message[:1].lower() + message[1:], f"{path} --help"
    console.print_error(UsageError(message, hint=hint))
