"""The command line: the commands with their help, and their errors. The module of a command is imported on demand.

A command parses its arguments, calls the rooms below for one value, and prints that as text or as JSON. Lines that
several commands show are in `views`. An error is one sentence and a hint; its class decides the exit status. Every
command imports this module, so its own imports must stay few.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import click

from serried.base import __version__
from serried.base.errors import Elsewhere, SerriedError, UsageError, did_you_mean

GROUPS = {
    "Run": {
        "run": "Run here, now, in the foreground.",
        "submit": "Submit a job to the cluster.",
        "sweep": "Train with settings from a range, and compare.",
        "rerun": "Submit an old run again, from its newest checkpoint.",
        "wait": "Wait for runs; exit 0 if all succeeded.",
        "stop": "Stop runs.",
        "shell": "Open a shell on a node, or beside a running rank.",
        "notebook": "Run JupyterLab in a job, and open it here.",
        "tunnel": "Reach a port of a run's node from here: TensorBoard, a debugger.",
    },
    "Look": {
        "ps": "List runs, the running ones first.",
        "show": "Show a run's plan, timeline and files.",
        "logs": "Print or follow the output of the ranks.",
        "why": "Explain why a run waits, failed, or looks suspicious.",
        "watch": "Watch runs live, on the terminal or in a browser.",
        "queue": "Show free GPUs, waiting jobs, and when yours may start.",
        "stacks": "Print where each rank is now, without ending it.",
    },
    "Measure": {
        "report": "Show what runs used, and which line to change.",
        "metrics": "Export logged and measured values: CSV, JSON.",
        "profile": "Profile a few steps: operators, data, idle GPU, trace.",
        "bench": "Measure how fast a training gets with more ranks.",
        "check-resume": "Check that a training resumes exactly.",
    },
    "Data and disk": {
        "stage": "Show the data to stage in, or stage it in advance.",
        "fetch": "Copy results and outputs to a folder.",
        "clean": "Show disk usage, and delete files that no run needs.",
    },
    "Set up": {
        "init": "Write a serried.toml that fits this folder, or a whole project.",
        "clusters": "List the clusters known here, or show one.",
        "doctor": "Check this machine, or nodes, before a run needs them.",
        "login": "Connect to a cluster from a laptop: the one place that prompts.",
        "config": "Show each setting and where it comes from.",
        "env": "Show, build or check environments and images.",
        "track": "Upload to trackers, or show runs in TensorBoard.",
        "lab": "Start and stop a throwaway Slurm on this machine.",
        "docs": "Print a page of the documentation.",
        "completion": "Print the completion script for a shell.",
    },
}
"""All commands, by what a person wants."""

FIRST = {"Run": "init run submit sweep stop fetch", "Look": "ps watch show logs why clusters"}
"""The commands on the first page of the help, in the order in which a user meets them."""

SHORT = {
    "run": "nodes gpus ranks time set env commands stage resume debug smoke dry-run",
    "submit": "nodes gpus time account partition cluster set env after resume wait dry-run",
    "sweep submit": "grid random count seeds workers metric gpus time account cluster dry-run yes",
    "check-resume": "stops steps seed tolerance ignore gpus ranks time cluster set dry-run",
    "bench scaling": "nodes ranks launch method repeat batch time account cluster wait yes dry-run",
    "shell": "nodes gpus cpus mem time account partition cluster now node rank dry-run",
    "notebook": "gpus cpus mem time account partition cluster detach yes dry-run",
    "stage": "warm nodes gpus time account cluster set dry-run",
    "profile": "steps rank memory show nodes gpus ranks time cluster set dry-run",
    "doctor": "nodes gpus time account partition like ticket cluster dry-run json",
    "config show": "all explain cluster set nodes gpus time",
}
"""The options that `-h` shows, for commands with more than twelve."""

MODULE_OF = {
    "check-resume": "check_resume",
    "rerun": "submit",
    "watch": "ps",
    "wait": "stop",
    "clusters": "config",
    "completion": "docs",
    "notebook": "tunnel",
}
"""Commands whose module has another name. A second command in a module is the function `NAME_command`."""

JUDGING = ("check-resume", "clean", "doctor", "fetch", "login", "wait")
"""Commands whose exit code tells more than that they could print."""

ACROSS = {
    "reads": "clusters check, clusters learn, logs, metrics, ps, queue, report, show, stacks, sweep show, tunnel,"
    " wait, watch, why",
    "changes": "clean, env, fetch, profile, shell, stage, stop, sweep stop, track",
    "repeats": "doctor, rerun, sweep add, sweep retry",
    "submits": "check-resume, notebook, run, submit, sweep",
    "stays": "bench, clusters, completion, config, docs, init, lab, login, track tensorboard",
}
"""How `remote.relay` treats a command for another cluster. A group's name stands for its commands not listed here."""

VERBS = {verb: words for group in GROUPS.values() for verb, words in group.items()}
"""The help of each command, in one line."""

MEANT = {
    "ps": "list ls jobs runs squeue sacct qstat status",
    "watch --web": "ui web dashboard browser",
    "watch": "top htop monitor live nvitop turm",
    "submit": "sbatch qsub send start launch queue-up",
    "run": "exec torchrun mpirun",
    "sweep": "tune grid search optimize hyperparameters multirun",
    "rerun": "resume restart retry requeue continue qrerun resubmit",
    "shell RUN --rank N": "attach debug enter",
    "run -- COMMAND` in a job, or else `serried shell": "srun",
    "shell": "ssh salloc interactive bash",
    "tunnel": "forward port-forward port",
    "notebook": "jupyter jupyterlab lab-notebook ipython",
    "logs": "log tail output cat print follow",
    "show": "info describe inspect view plan",
    "queue": "sinfo pbsnodes free gpus idle availability",
    "metrics": "export csv json nvidia-smi dmon",
    "why": "explain",
    "login": "connect signin sign-in logout auth",
    "doctor": "check diagnose verify selftest health preflight",
    "bench": "benchmark scaling speedup throughput",
    "stacks": "stack traceback hang py-spy gdb pstack",
    "report --explain NAME": "rule rules",
    "report": "seff jobstats reportseff efficiency stats",
    "fetch": "pull download results get sync",
    "track tensorboard": "tensorboard tb board tfevents",
    "track sync": "wandb mlflow",
    "stop --forget RUN": "forget",
    "stop": "cancel kill scancel qdel abort end",
    "clean": "rm remove delete prune purge gc",
    "clean --list": "du space usage quota",
    "init --from FILE": "import convert migrate translate",
    "init": "new create template",
    "clusters": "cluster profiles partitions",
    "stage": "data upload push",
    "config": "settings get-config",
    "env build": "image container build",
    "env": "venv conda environment",
    "--version": "version",
}
"""Words of schedulers, of other tools and of earlier versions, by the command that does the same."""

OPTIONS_MEANT = {
    "--ranks": "n",
    "--gpus": "G",
    "--cpus": "c",
    "--nodes": "N",
    "--time": "limit t",
    "--name": "job-name J",
    "--after": "dependency d",
    "--account": "A",
    "--partition": "p queue q",
    "--qos": "q",
    "--constraint": "C",
    "--array": "a",
    "--stage": "data dataset input",
    "--env": "export v variable environment setenv",
    "--module": "modules load",
    "--wait": "W block sync",
    "--step": "launch",
    "--host": "node",
    "--tail": "n lines",
    "--last": "n",
    "--resume": "checkpoint continue from",
    "--image": "container sif docker",
    "--set environment.venv=VALUE": "virtualenv",
    "-- COMMAND": "wrap",
    "SCRIPT": "script file",
}
"""The same for options, where the closest spelling would be another. `KEYS_MEANT` has the words for keys of a file."""

OPTIONS_NEEDLESS = {
    "output error o e": "Serried keeps the output: serried logs RUN",
    "requeue no-requeue": "`--restarts N` limits the further attempts",
    "chdir D": "the command starts in this folder; `--set workdir=DIR` names another one below the project",
    "parsable": "the id of the run is the only line on stdout",
    "test-only": "`--dry-run` shows the plan and the command",
    "u user me": "your own runs are listed; `serried queue` shows the jobs of others",
}
"""What to do in place of options that have no counterpart."""

ARGUMENTS_HINT = "serried.arguments"
"""In `meta` of a context: how to pass an unknown option to the job script before it."""


TYPED, TYPED_SCRIPT = "serried.typed", "serried.typed_script"
"""In `meta` of a context: the command with its arguments, and the job script that was on standard input."""

Found = tuple[Optional[str], Optional[click.Command], list[str]]


class GroupWithHelp(click.Group):
    """A group with a command `help`: `serried help config show` and `serried config help show` are the same."""

    def __init__(self, *args: Any, default: str | None = None, **kwargs: Any) -> None:
        """`default` is the subcommand for any first word that names none."""
        super().__init__(*args, **kwargs)
        self._default = default

    def with_default(self, args: list[str]) -> list[str]:
        is_named = args[0] in (*self.commands, "help", "-h", "--help") if args else not self.invoke_without_command
        return [self._default, *args] if self._default and not is_named else args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.with_default(args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        found = super().shell_complete(ctx, incomplete)
        inner = self.commands[self._default].params if self._default else []
        first = next((param for param in inner if isinstance(param, click.Argument)), None)
        return found + (first.shell_complete(ctx, incomplete) if first else [])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Found:
        word, path = args[0], ctx.command_path
        if word in self.list_commands(ctx) or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if word != "help":
            show = f"did you mean `{path} show {word}`?" if "show" in self.commands else f"{path} --help"
            raise UsageError(f"unknown command: `{word}`", hint=did_you_mean(word, self.commands, command=path) or show)
        words = [word for word in args[1:] if word not in ("help", "-h", "--help")]
        if not words or words == ["--all"]:
            ctx.meta[ALL] = bool(words)
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        name, command, words = self.resolve_command(ctx, words)
        return name, command, ["help", *words] if isinstance(command, GroupWithHelp) else ["--help"]


ALL = "serried.all"
"""In `meta` of a context: whether the help is to list all commands."""
_MOST_EXAMPLES = 3
_COLUMNS = 80


def _short_help(ctx: click.Context) -> str:
    """The help of a command on one screen: its usage, first sentence, examples and the options that matter."""
    import re
    import textwrap

    command, formatter = ctx.command, click.HelpFormatter(width=_COLUMNS)
    command.format_usage(ctx, formatter)
    text, groups = _help_of(command), [_help_of(ctx.parent.command)] if ctx.parent else []
    inner = command.commands if isinstance(command, click.Group) else {}
    shown = [text, *([] if _examples(text) else [*groups, *map(_help_of, inner.values())])]
    lines = [line for help_ in shown for line in _examples(help_)]
    examples = [line for line in lines if line.startswith(ctx.command_path)] or lines
    formatter.write_paragraph()
    formatter.write_text(" ".join(text.partition("\n\n")[0].split()))
    formatter.write("\n".join(["", *examples[:_MOST_EXAMPLES], ""]))
    rows = [(name, each.get_short_help_str(_COLUMNS)) for name, each in inner.items()]
    if not rows:
        flags = {flag: param for param in command.params if isinstance(param, click.Option) for flag in param.opts}
        wanted = [flags[f"--{name}"] for name in SHORT.get(ctx.command_path.partition(" ")[2], "").split()]
        wanted = wanted or [param for param in dict.fromkeys(flags.values()) if param.opts != ["-h"]]
        records = [record for param in wanted if (record := param.get_help_record(ctx))]
        rows = [(names, about.partition("  [")[0]) for names, about in records]
    widest = max((len(names) for names, _ in rows), default=0)
    room = _COLUMNS - widest - 4
    for names, about in rows:
        words = about if len(about) <= room else re.split(r" \(|[.:;] ", about)[0]
        formatter.write(f"\n  {names:{widest}}  {textwrap.shorten(words, room, placeholder='…')}")
    formatter.write("\n\n" if rows else "\n")
    return f"{formatter.getvalue()}`{ctx.command_path} --help` shows everything."


def _help_of(command: click.Command) -> str:
    import inspect

    return inspect.cleandoc((command.help or "").replace("\b", ""))


def _examples(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("serried ")]


def _print_short_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(_short_help(ctx), color=ctx.color)
        ctx.exit()


@contextlib.contextmanager
def _may_lose_its_reader(ctx: click.Context | None = None) -> Iterator[None]:
    """`serried ps | head` succeeds. click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        if ctx and ctx.invoked_subcommand in JUDGING:
            raise
        raise click.exceptions.Exit(0) from None


class CommandsByName(GroupWithHelp):
    """Lists all commands without importing them: `--help` has to be instant on slow file systems."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ALL] = "--all" in args[:2] and set(args[:2]) & {"-h", "--help"}
        return super().parse_args(ctx, ["--help"] if ctx.meta[ALL] else args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _may_lose_its_reader():  # of `--help`
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _may_lose_its_reader(ctx):
            try:
                return super().invoke(ctx)
            except Elsewhere as error:
                from serried.remote import relay  # most machines are the login node themselves

                words = ctx.meta[TYPED]
                raise SystemExit(relay.relay(error, words, across(words), ctx.meta.get(TYPED_SCRIPT))) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        gc.disable()  # what an import creates stays
        module: Any = importlib.import_module(f"serried.cli.{MODULE_OF.get(cmd_name, cmd_name)}")
        gc.freeze()
        gc.enable()
        command: click.Command = getattr(module, f"{cmd_name}_command", module.command)
        _prepare(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Found:
        word = args[0]
        ctx.meta[TYPED] = tuple(args)
        if word in (*VERBS, "help") or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        import difflib

        meant = [verb for verb, others in MEANT.items() if word.lower() in others.split()]
        if not meant and (os.path.isfile(word) or " " in word or re.fullmatch(r".*\.py|python[\d.]*", word)):  # noqa: PTH113
            raise _is_a_command(args)
        meant = meant or difflib.get_close_matches(word, VERBS, n=1)
        hint = f"did you mean `serried {meant[0]}`? {VERBS.get(meant[0], '')}" if meant else "serried --help lists them"
        raise UsageError(f"unknown command: `{word}`", hint=hint.rstrip())

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first page, which fits on a screen; or every command and option."""
        if ctx.meta.get(ALL):
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for title, verbs in FIRST.items():
            with formatter.section(title):
                formatter.write_dl([(verb, VERBS[verb]) for verb in verbs.split()])
        formatter.write("\nserried help --all: every command    serried COMMAND -h: one command\n")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(widest), words) for verb, words in verbs.items()])


def across(words: Sequence[str]) -> str:
    """The key of ACROSS that lists the command."""
    kinds = {name: kind for kind, names in ACROSS.items() for name in names.split(", ")}
    return kinds.get(" ".join(words[:2]), kinds[words[0]])


def _is_a_command(words: list[str]) -> UsageError:
    """The error for `serried train.py`, with the lines to type."""
    import shlex

    first, *rest = words
    line = shlex.join(["python", *words] if first.endswith(".py") else words)
    if " " in first and not rest:
        line = first
    is_script = os.path.isfile(first) and not first.endswith(".py")  # noqa: PTH113 - it never raises
    typed = shlex.join([first, *(["--", *rest] if rest else [])]) if is_script else f"-- {line}"
    hint = f"on the cluster: serried submit {typed}\nhere and now: serried run {typed}"
    return UsageError(f"unknown command: `{first}`", hint=hint)


def _prepare(command: click.Command) -> None:
    r"""Add `-h`, and replace `\b` in raw docstrings by the character that makes click keep the lines of a paragraph."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    if not any("-h" in param.opts for param in command.params):
        how: Any = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _print_short_help}
        command.params.append(click.Option(["-h"], help="Show a help that fits on a screen.", **how))
    for inner in getattr(command, "commands", {}).values():
        _prepare(inner)


def _change_folder(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    try:
        os.chdir(value)
    except OSError as error:
        message = f"cannot start in `{value}`: {str(error.strerror).lower()}"
        raise UsageError(message, hint="`-C DIR` runs the command as if it was started in DIR") from None


@click.command(cls=CommandsByName, context_settings={"help_option_names": ["--help"]})
@click.help_option("-h", "--help")
@click.version_option(__version__, "-V", "--version", prog_name="serried")
@click.option("-q", "--quiet", is_flag=True, help="Print no notes, progress and next steps; errors and data stay.")
@click.option("-v", "--verbose", is_flag=True, help="Print each command that Serried runs, as SERRIED_VERBOSE does.")
@click.option(
    "-C",
    "--directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_change_folder,
    help="Run as if started in DIR.",
)
@click.pass_context
def serried(ctx: click.Context, *, quiet: bool, verbose: bool) -> None:
    """\b
    Run PyTorch training on many GPUs and nodes of a Slurm or PBS cluster.
    serried run -- python train.py                          here, now
    serried submit --nodes 2 --gpus 4 -- python train.py    on the cluster
    """  # noqa: D301 - not raw: click keeps the lines after the character itself
    for name, is_given in (("SERRIED_QUIET", quiet), ("SERRIED_VERBOSE", verbose)):
        if is_given:
            os.environ[name] = "1"
            ctx.call_on_close(functools.partial(os.environ.pop, name))


def main() -> None:
    """Entry point: run the command, print its error if it raises one, and exit with the error's code."""
    if sys.platform == "win32":
        print(
            "error: Serried does not run on Windows itself\n\n"
            "hint: use it within WSL2: `wsl --install`, then install Serried there",
            file=sys.stderr,
        )
        sys.exit(2)
    if sys.stdout is None:  # `serried ps >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the process ends, without pathlib
    status = _status()
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the rest is flushed there again at exit
        status = status if isinstance(error, BrokenPipeError) else _print_full_disk(error)
    if status:
        sys.exit(status)


def _status() -> int | str | None:
    try:
        serried.main(prog_name="serried", standalone_mode=False)
    except SystemExit as end:
        return end.code
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # click 8.2 and later
        click.echo(error.ctx.get_help(), color=error.ctx.color)
    except click.ClickException as error:
        _print_click_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SerriedError as error:
        from serried.views import console

        console.print_error(error)
        return error.exit_code
    except OSError as error:
        is_of_folder = error.errno == errno.ENOENT and error.filename is None  # from `os.getcwd()`
        if not is_of_folder and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _print_no_folder() if is_of_folder else _print_full_disk(error)
    return 0


def _print_no_folder() -> int:
    print("error: the current folder was deleted\n\nhint: cd to another folder", file=sys.stderr)
    return 2


def _print_full_disk(error: OSError) -> int:
    print(f"error: cannot write {error.filename or 'the output'}: {str(error.strerror).lower()}", file=sys.stderr)
    return 1


def _print_click_error(error: click.ClickException) -> None:
    """Print click's error as Serried prints its own: one sentence, and a hint."""
    from serried.views import console

    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "serried"
    if context and isinstance(error, click.NoSuchOption):
        message, hint = f"unknown option: `{error.option_name}`", _hint_of_option(error.option_name, context)
    else:
        message, hint = _sentence(error), f"{path} --help"
    console.print_error(UsageError(message, hint=hint))


def _sentence(error: click.ClickException) -> str:
    param = error.param if isinstance(error, click.BadParameter) else None
    if param and isinstance(error, click.MissingParameter) and isinstance(param.type, click.Choice):
        *most, last = (f"`{choice}`" for choice in param.type.choices)  # click's own list has tabs
        return f"one of {', '.join(most)} and {last} is missing"
    message = " ".join(error.format_message().rstrip(".").replace("'", "`").split())
    if param and not isinstance(error, click.MissingParameter) and isinstance(param.type, click.types.IntParamType):
        least = f" from {param.type.min or 0}" if isinstance(param.type, click.IntRange) else ""
        value = error.message.partition(" is not ")[0].strip("'")
        message = f"`{param.opts[0]}` must be a whole number{least}, not `{value}`"
    return message[:1].lower() + message[1:]


def _hint_of_option(option: str, context: click.Context) -> str:
    """What an unknown option means: the first of the cases that applies."""
    import difflib

    from serried.config.definitions import KEYS_MEANT, PARTS_OF_COMMAND_LINE  # only for mistakes

    word, verb, path = option.lstrip("-"), context.info_name, context.command_path
    dashed, key = word.replace("_", "-"), word.replace("-", "_")
    flags = [flag for param in context.command.params for flag in param.opts]
    known = (*flags, "--", "SCRIPT") if verb in ("submit", "run") else flags
    words = [*OPTIONS_MEANT.items(), *((f"--{key.rpartition('.')[2]}", others) for key, others in KEYS_MEANT.items())]
    pairs = [(other, flag) for flag, others in words for other in others.split()]
    meant = [flag for other, flag in pairs if other in (word, dashed)]
    close = [flag for flag in dict.fromkeys(meant) if flag.partition(" ")[0] in known]
    needless = next((text for words, text in OPTIONS_NEEDLESS.items() if word in words.split()), None)
    to_script = context.meta.get(ARGUMENTS_HINT)
    if not (close or to_script or needless):
        # Short words are alike by chance, and confirmation is never what somebody meant.
        spellings = {other: flag for other, flag in pairs if flag in flags}
        spellings |= {flag[2:]: flag for flag in flags if flag.startswith("--") and flag != "--yes"}
        parts = PARTS_OF_COMMAND_LINE.items() if "--set" in flags else ()
        close = [f"--set {part}.{named}=VALUE" for part, table in parts if (named := table.key_named(key))][:1]
        close = close or [spellings[near] for near in difflib.get_close_matches(word, spellings, n=1, cutoff=0.75)]
    submit = serried.get_command(context, "submit") if verb in ("run", "rerun") else None
    is_of_submit = any(option in param.opts for param in (submit.params if submit else ()))
    is_of_old_run = verb == "rerun" and (meant or is_of_submit)
    is_of_all = any(option in param.opts for param in serried.params)
    cases = (
        (close, "\n".join(filter(None, (f"did you mean {' or '.join(f'`{flag}`' for flag in close)}?", to_script)))),
        (to_script, to_script),
        (verb == "run" and is_of_submit, "an option of `serried submit`; `serried run` runs here and now, to the end"),
        (is_of_old_run, "a rerun keeps the settings of its run; for others: serried submit … --resume RUN"),
        (is_of_all, f"it stands before the command: serried {option} {path.partition(' ')[2]}"),
        (needless, needless),
        (word in VERBS, f"a command does this: serried {word} --help"),
    )
    return next((str(hint) for applies, hint in cases if applies), f"{path} --help lists them")
