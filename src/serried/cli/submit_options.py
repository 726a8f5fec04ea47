"""What `run` and `submit` share: `[EXPERIMENT | -- COMMAND...]`, their flags, and the way the plan is shown."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from serried import script
from serried.builds import Observe
from serried.cli import options, run_selector
from serried.errors import UsageError
from serried.protocol import SCHEMA
from serried.submission.prepared import Prepared
from serried.submission.request import Request
from serried.ui import console
from serried.ui.plan_lines import plan_lines
from serried.ui.text import pad, printable

Function = TypeVar("Function", bound=Callable[..., Any])

COMMAND = "serried.command"
WORDS = "serried.words"
"""Everything that was typed after the verb."""


class TakesCommand(options.Sorted):
    """A verb whose words after the first `--` are a command, verbatim; click would lose the `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        given = list(args)  # click takes from the list as it reads
        try:
            return super().parse_args(ctx, args)
        except click.UsageError:
            if COMMAND in ctx.meta or len(given) < 2 or any(word.startswith("-") for word in given[:2]):
                raise
            raise UsageError(
                f"`{given[0]}` is followed by `{given[1]}`, and an experiment is one word",
                hint=f"a command goes after `--`: serried {ctx.info_name} -- {shlex.join(given)}",
            ) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", f"[{'EXPERIMENT...' if ctx.info_name == 'submit' else 'EXPERIMENT'} | -- COMMAND...]"]


def flags(function: Function) -> Function:
    """The flags of both verbs; what they run stands before them."""
    decorators = [
        options.resources,
        options.common,
        click.option(
            "--array", metavar="INDICES", help="Submit a job array with these indices: 0-999, 0-10:2 or 1,3,5."
        ),
        click.option("--parallel", type=int, metavar="N", help="Most array tasks that run at once."),
        click.option(
            "--commands",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Submit a job array: one task per line of FILE, counted from 0.",
        ),
        click.option(
            "--repeat",
            type=int,
            metavar="N",
            help="Run the command, or each line of FILE, N times with N seeds (`{seed}`).",
        ),
        click.option(
            "--stage",
            metavar="PATH",
            multiple=True,
            help="Copy PATH to each node's own disk first; from here, else below `data.root`. May be repeated.",
        ),
        click.option("--image", metavar="FILE", help="The container image; `off` for none."),
        click.option(
            "--resume",
            metavar="RUN|PATH",
            shell_complete=run_selector.complete_runs,
            help="Resume from the newest complete checkpoint of a run (`last`: the newest run) or in PATH.",
        ),
        click.option("--debug", is_flag=True, help="Turn on the logs of NCCL and torch.distributed."),
        click.option("--smoke", is_flag=True, help="A smoke test: train a few steps, save, load and exit."),
        click.option("--dry-run", is_flag=True, help="Print the plan, job script and command; submit nothing."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def request(values: Mapping[str, Any], cluster: str | None) -> Request:
    """What the flags in `values` ask for; not every verb has all of them."""
    context = click.get_current_context()
    return Request(
        experiment=values["experiment"],
        command=context.meta.get(COMMAND),
        overrides=options.overrides(values, values["settings"]) | _of_flags(values),
        cluster=cluster,
        name=values["name"],
        array=values.get("array"),
        parallel=values.get("parallel"),
        each=values.get("commands"),
        repeat=values.get("repeat"),
        resume=values.get("resume"),
        smoke=bool(values.get("smoke")),
    )


def _of_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that have a flag, and are no resource."""
    made: dict[str, Any] = {"debug": True} if values.get("debug") else {}
    if values.get("stage"):
        made["data.stage"] = [{"from": _from_here(path)} for path in values["stage"]]
    if values.get("image") is not None:
        made["container.image"] = _from_here(values["image"])
    return made


def _from_here(path: str) -> str:
    """As a shell would mean it where that is there; else as the project's file would."""
    return os.path.abspath(path) if path and os.path.lexists(path) else path  # noqa: PTH100 - links stay


OF_ONE = {
    "array": "--array",
    "commands": "--commands",
    "name": "--name",
    "parallel": "--parallel",
    "repeat": "--repeat",
    "resume": "--resume",
}


def check_several(values: Mapping[str, Any]) -> None:
    """Raises UsageError for what several experiments cannot be asked at once."""
    if COMMAND in click.get_current_context().meta:
        raise UsageError("a command after `--` is one run, and several experiments are named before it")
    for key, flag in OF_ONE.items():
        if values.get(key) is not None:
            raise UsageError(
                f"`{flag}` is for one run, and several experiments are named", hint="submit that by itself"
            )


@contextlib.contextmanager
def progress(*, dry_run: bool = False) -> Iterator[Observe | None]:
    """Who is told how an environment is built, if one is: a line that moves, and one that stays for each step.

    None in a dry run, which builds nothing.
    """
    with contextlib.ExitStack() as stack:
        steps: set[str] = set()
        lines: list[console.MovingLine] = []

        def observe(step: str, latest: str = "", /) -> None:
            text = f"{step}: {latest}" if latest else step
            if step not in steps:
                steps.add(step)
                console.note(step)
                lines[:] = lines or [stack.enter_context(console.status_line(text))]
            lines[0].update(text)

        yield None if dry_run else observe


def show_plan(prepared: Prepared, *, several: bool = False) -> None:
    """The plan in a few lines, and what the user may not expect, as talk."""
    if several:
        console.say(console.style(f"{printable(prepared.plan.experiment)}, run {prepared.plan.run}", "head"))
    lines = plan_lines(prepared.plan, prepared.survey, prepared.revision)
    for label, text in lines:
        console.say_behind(f"{pad(label, 11)}  ", text, "quiet")
    say_about(prepared.notes, prepared.warnings)
    if several:
        console.say()


def say_about(notes: Iterable[str], warnings: Iterable[str]) -> None:
    """What is worth a word, and what the user may not expect, as talk."""
    for text in notes:
        console.note(text)
    for text in warnings:
        console.warning(text)


def dry_run(*prepared: Prepared, as_json: bool) -> None:
    """The plan, and exactly what the scheduler would be given, as data. Of the environment only names."""
    if as_json and len(prepared) == 1:
        console.out_json({"schema": SCHEMA, **_document(prepared[0])})
    elif as_json:
        console.out_json({"schema": SCHEMA, "submissions": [_document(one) for one in prepared]})
    else:
        for one in prepared:
            show_plan(one, several=len(prepared) > 1)
            _print(one)


def _document(prepared: Prepared) -> dict[str, Any]:
    return {
        "plan": prepared.plan.to_json(),
        "commands": [list(command) for command in prepared.each] or None,
        "argv": list(prepared.handover.argv),
        **({"jobs": [list(each.argv) for each in prepared.handovers]} if prepared.plan.is_in_parts else {}),
        "environment": sorted(prepared.environment),
        "script": prepared.script,
        "setup": script.render_setup(prepared.plan),
        "snapshot": list(prepared.survey.files) if prepared.survey else None,
        "warnings": list(prepared.warnings),
        "notes": list(prepared.notes),
    }


def _print(prepared: Prepared) -> None:
    names = sorted(prepared.environment)
    commands = [shlex.join(each.argv) for each in prepared.handovers]
    console.out(
        "\n".join(["# the command" if len(commands) == 1 else f"# the {len(commands)} commands", *commands, ""])
    )
    console.out(f"# variables that the job inherits\n{' '.join(names)}\n")
    console.out(f"# {prepared.plan.directory}/job.sh\n{prepared.script}")
    if setup := script.render_setup(prepared.plan):
        console.out(f"# {prepared.plan.directory}/setup.sh\n{setup}")
