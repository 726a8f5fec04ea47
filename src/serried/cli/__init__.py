"""The command line. One small file for each verb, imported when that verb is used."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from serried.errors import SerriedError

GROUPS = {
    "Begin": {
        "init": "Write a serried.toml that fits this folder, or a whole project.",
        "import": "Convert a job script to a serried.toml.",
    },
    "Run": {
        "run": "Run here, now, in the foreground.",
        "submit": "Submit a job to the cluster.",
        "rerun": "Submit an old run again, from its newest checkpoint.",
        "check-resume": "Check that a training resumes exactly.",
        "shell": "Open a shell on a node, or in a running job.",
        "stage": "Show the data to stage in, or stage it in advance.",
    },
    "Look": {
        "ps": "List runs, the running ones first.",
        "show": "Show a run's plan, timeline and files.",
        "logs": "Print or follow the output of the ranks.",
        "why": "Explain why a run waits, or why it failed.",
        "wait": "Wait for runs; exit 0 if all succeeded.",
        "fetch": "Copy results and outputs to a folder.",
    },
    "End": {
        "stop": "Stop runs.",
        "forget": "Drop a submission whose outcome is unknown.",
    },
    "Tidy": {
        "du": "Show disk usage.",
        "clean": "Delete files that no run needs.",
    },
    "Set up": {
        "config": "Show each setting and where it comes from.",
        "clusters": "List the clusters known here, or show one.",
        "env": "Show, build or check an experiment's environment.",
        "image": "Build the container images of experiments.",
        "lab": "Start and stop a throwaway Slurm on this machine.",
        "completion": "Print the completion script for a shell.",
    },
}
"""What `serried --help` lists, in the order in which one meets it."""

MODULE_OF = {"import": "import_", "check-resume": "check_resume", "rerun": "submit", "forget": "stop", "image": "env"}
"""The modules of commands that are not alone in a module of their name. The second one there is `NAME_command`."""

OLD = {"rehearse": "check-resume"}
"""Former names of commands: still understood, with a note."""

VERBS = {verb: words for group in GROUPS.values() for verb, words in group.items()}


class Verbs(click.Group):
    """Knows every verb's one-line help without importing it: --help has to be instant on slow file systems."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module: Any = importlib.import_module(f"serried.cli.{MODULE_OF.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command", module.command)
        _keep_lines(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help" and not ctx.resilient_parsing:
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
        if args[0] in OLD and not ctx.resilient_parsing:
            old, args = args[0], [OLD[args[0]], *args[1:]]
            click.echo(f"note: `serried {old}` is now `serried {args[0]}`", err=True)
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from serried.cli.click_errors import no_verb

            raise no_verb(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(widest), words) for verb, words in verbs.items()])


def _keep_lines(command: click.Command) -> None:
    """Docstrings are raw: what they spell as a backslash and a `b` becomes the character by which click keeps lines."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in getattr(command, "commands", {}).values():
        _keep_lines(inner)


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="serried", prog_name="serried")
def serried() -> None:
    """Run a PyTorch training script on many GPUs and nodes of a Slurm or PBS cluster.

    \b
    serried run -- python train.py                          here, now
    serried submit --nodes 2 --gpus 4 -- python train.py    on the cluster
    serried ps                                              how it goes
    """  # noqa: D301 - click wants the character itself: keep these lines


def main() -> None:
    """Entry point: runs the verb, prints what Serried raises, exits with its code."""
    if sys.platform == "win32":
        print(
            "error: Serried does not run on Windows itself\n\n"
            "hint: use it within WSL2: `wsl --install`, then install Serried there",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        serried.main(prog_name="serried", standalone_mode=False)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # click 8.2 and later
        click.echo(error.ctx.get_help(), color=error.ctx.color)
    except click.ClickException as error:
        from serried.cli.click_errors import show

        show(error)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # `serried ps | head` is no error; what is left must not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SerriedError as error:
        from serried.ui import console

        console.print_error(error)
        sys.exit(error.exit_code)
