"""The options that commands share, and how they show a plan."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from serried import config, schedulers
from serried.base.errors import Elsewhere, Risk, UsageError
from serried.cli import ARGUMENTS_HINT, TYPED_SCRIPT, run_view
from serried.config import definitions, shell_words
from serried.config.definitions import Resources, keys
from serried.config.values import BOOLEAN, BadValue, Typed, choice
from serried.schema.plan import Key, Launch, Track
from serried.schema.reasons import Reason
from serried.submission import script
from serried.submission.deliver import Observe, Prepared
from serried.submission.request import Request, decide
from serried.views import console
from serried.views.plan_lines import plan_lines
from serried.views.text import pad, printable

Function = TypeVar("Function", bound=Callable[..., Any])

COMMAND = "serried.command"
WORDS = "serried.words"
"""All words after the name of the command."""

_RESOURCES = keys(Resources)
_LAUNCH = keys(Launch)["kind"]
_TRACK_MODE = keys(Track)["mode"]
_SIZE = ("nodes", "spare_nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu", "time")
"""The resources that make up the size of a run; the others are for the scheduler."""


class Sorted(click.Command):
    """A command that lists its own options first, then those that many commands share, by subject."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Resources": [], "For the scheduler": []}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if line:
                about = "Resources" if param.name in _SIZE else "For the scheduler"
                sections[about if param.name in _RESOURCES else "Options"].append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


_USAGE = {"shell": ("[EXPERIMENT | RUN]", "[-- COMMAND...]"), "build": ("[EXPERIMENT]", "[-- OPTIONS...]")}
"""The arguments of commands that take no script."""


class TakesCommand(Sorted):
    """Takes the words after the first `--` as a command, verbatim; click would drop the `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        if "--" in args:
            end = args.index("--")
            ctx.meta[COMMAND] = tuple(args[end + 1 :])
            args = args[:end]
        given = list(args)  # click empties the list
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            at = self._first_argument(ctx, given)
            is_extra = type(error) is click.UsageError  # a second word where one is expected
            if COMMAND in ctx.meta or at is None or at + 1 == len(given):
                raise
            if not (isinstance(error, click.NoSuchOption) or (is_extra and not given[at + 1].startswith("-"))):
                raise
            word, end = given[at], at + 1
            if isinstance(error, click.NoSuchOption):
                behind = (it for it in range(end, len(given)) if given[it].startswith(error.option_name))
                end = next(behind, len(given))
                if _looks_like_job_script(word):
                    line = _line(ctx, [*given[:end], "--", *given[end:]])
                    ctx.meta[ARGUMENTS_HINT] = f"to pass it to the job script: {line}"
                if not _looks_like_command(word) or end == len(given):
                    raise
            if _looks_like_job_script(word):
                raise script_is_followed(ctx, given, end) from None
            what = "begins a command" if _looks_like_command(word) else f"is followed by `{given[end]}`"
            raise UsageError(
                f"`{word}` {what}, and an experiment is one word", hint=_meant_line(ctx, given, at)
            ) from None

    def _first_argument(self, ctx: click.Context, words: Sequence[str]) -> int | None:
        """The place of the first word that is neither an option nor its value."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        valued = {name for param in options if not param.is_flag for name in param.opts}
        at = 0
        while at < len(words) and words[at].startswith("-") and words[at] != "-":
            at += 2 if words[at] in valued else 1
        return at if at < len(words) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            words = list(ctx.meta[WORDS])
            if error.code is Reason.COMMAND_NOT_FOUND and COMMAND in ctx.meta:
                line = _meant_line(ctx, words, words.index("--") + 1)
                error.hint = error.hint if line == _line(ctx, words) else line
            elif error.code is Reason.NO_SUCH_EXPERIMENT and error.about in words:
                at = words.index(str(error.about))
                if _looks_like_command(words[at]) or words[at + 1 : at + 2] not in ([], ["--"]):
                    error.hint = _meant_line(ctx, words, at)
            elif error.code is Reason.NOTHING_TO_RUN:
                from serried.config import job_script

                scripts = job_script.names_in(Path.cwd()) if ctx.info_name in ("submit", "run") else []
                script = next(iter(scripts), None)
                of_script = f"a job script is an argument: {ctx.command_path} {shlex.quote(script)}\n" if script else ""
                command = f"a command goes after `--`: {ctx.command_path} -- python train.py"
                error.hint = f"{of_script}{command}\n`serried init` writes a `serried.toml`"
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        if ctx.info_name in _USAGE:
            return ["[OPTIONS]", *_USAGE[ctx.info_name]]
        experiment = "EXPERIMENT..." if ctx.info_name == "submit" else "EXPERIMENT"
        return ["[OPTIONS]", f"[{experiment} | SCRIPT [-- ARGUMENTS...] | -- COMMAND...]"]


def _looks_like_command(word: str) -> bool:
    """Whether a word in the place of an experiment is a program, a script or a whole command."""
    return bool(word.endswith(".py") or " " in word.strip() or shutil.which(word) or _PYTHON.fullmatch(word))


_PYTHON = re.compile(r"python[\d.]*")


def _line(ctx: click.Context, words: Sequence[str]) -> str:
    return shlex.join([*ctx.command_path.split(), *words])


def script_is_followed(ctx: click.Context, words: Sequence[str], at: int) -> UsageError:
    """The error for arguments of a job script that begin at `at`."""
    hint = f"its arguments go after `--`: {_line(ctx, [*words[:at], '--', *words[at:]])}"
    return UsageError(f"`{words[at - 1]}` is a job script, and `{words[at]}` follows it", hint=hint)


def _meant_line(ctx: click.Context, words: Sequence[str], at: int) -> str:
    """The line that the user meant: `--` before the command that begins at `at`, and `python` before its script."""
    first, *rest = words[at:]
    before = [word for word in words[:at] if word != "--"]
    if not rest and not shell_words.OPERATORS.isdisjoint(first.split()):
        return _line(ctx, [*before, "--", "bash", "-c", first])
    with contextlib.suppress(ValueError):
        first, *more = shlex.split(first) or [first]
        rest = [*more, *(word for word in rest if word != "--")]
    starts_scripts = {"bash", "sh", *(its.command for _, its in schedulers.every())}
    if first in starts_scripts and rest and _looks_like_job_script(rest[0]):
        return _line(ctx, [*before, rest[0], *(["--", *rest[1:]] if rest[1:] else [])])
    is_plain = first.endswith(".sh") and Path(first).is_file() and not _looks_like_job_script(first)
    program = [*(["python"] if first.endswith(".py") else ["bash"] if is_plain else []), first]
    return _line(ctx, [*before, "--", *program, *rest])


def _looks_like_job_script(word: str) -> bool:
    if not Path(word).is_file():
        return False
    from serried.config import job_script

    return job_script.looks_like_one(Path(word))


def flag(key: str) -> str:
    """The flag for a resource: `mem_per_node` is `--mem-per-node`."""
    return "--" + key.replace("_", "-")


def together(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order of the help."""

    def add(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def _option(name: str, key: Key) -> Callable[[Function], Function]:
    if key.kind is BOOLEAN:
        return click.option(f"{flag(name)}/--no-{name}", name, default=None, help=key.help)
    default = f"  [default: {key.default.replace('`', '')}]" if key.default else ""
    names = [_SHORT.get(name), flag(name), *([flag(key.alias)] if key.alias else [])]
    about = f"{key.help} `-t 90` is 90 minutes." if name == "time" else key.help
    return click.option(
        *filter(None, names), name, metavar=key.kind.metavar, multiple=key.kind.many, help=about + default
    )


_SHORT = {"nodes": "-N", "partition": "-p", "account": "-A"}
resources = together(
    *(_option(name, key) for name, key in _RESOURCES.items()), click.option("-t", "short_time", hidden=True)
)
"""One flag for each key of the table `resources`. The command receives texts."""

resources_of_points = together(
    *(_option(name, key) for name, key in _RESOURCES.items() if name not in ("nodes", "spare_nodes", "gpus", "ranks"))
)
"""Those of a bench, whose points have their own sizes."""


def _keys() -> Iterator[str]:
    yield from (f"{key}=" for key in definitions.COMMAND_LINE.keys)
    for part, inner in definitions.PARTS_OF_COMMAND_LINE.items():
        yield from (f"{part}.{key}=" for key in inner.keys)


def any_setting(about: str) -> Callable[[Function], Function]:
    return click.option("--set", "settings", type=run_view.Offered("KEY=VALUE", _keys), multiple=True, help=about)


def _choice(name: str, key: Key) -> run_view.Offered:
    return run_view.Offered(name, lambda: key.kind.parse.words if isinstance(key.kind.parse, choice) else ())


def _programs() -> Iterator[str]:
    from serried.config import job_script

    yield from config.catalogue(Path.cwd(), os.environ).experiments
    yield from job_script.names_in(Path.cwd())


PROGRAM = run_view.Offered("EXPERIMENT", _programs, or_file=True)
experiment = click.argument("experiment", required=False, type=run_view.EXPERIMENT)

cluster = click.option("--cluster", type=run_view.CLUSTER, help="Where to run; `serried clusters` lists them.")
common = together(
    click.option("--launch", type=_choice("KIND", _LAUNCH), help="Launcher of the ranks.  [default: agent]"),
    cluster,
    click.option("-J", "--name", metavar="NAME", help="Name of the run."),
    any_setting("Any setting, as in `--set limit.grace=60s`."),
)

yes = click.option("-y", "--yes", is_flag=True, help="Submit without confirmation, also after a warning.")


def _show_script(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.params.get("dry_run"):
        hint = f"a job script is an argument: {ctx.command_path} FILE" if ctx.info_name in ("submit", "run") else None
        raise UsageError("`--script` is for `--dry-run`: it prints the job script, too", hint=hint)
    ctx.meta[_SCRIPT] = value


_SCRIPT = "serried.script"
dry_runs = together(
    click.option("--dry-run", is_flag=True, is_eager=True, help="Print the plan and the command; submit nothing."),
    click.option(
        "--script",
        is_flag=True,
        expose_value=False,
        callback=_show_script,
        help="With --dry-run, print the job script and the names of its variables, too.",
    ),
)
_WAIT = "Wait for the end, as `serried wait` does. Ctrl-C ends the waiting, not the run."
wait = click.option("--wait", is_flag=True, help=_WAIT)
sending = together(yes, wait, dry_runs, run_view.as_json)

_FILE = click.Path(path_type=Path)
_FLAGS: Sequence[tuple[str, str, Mapping[str, Any], str]] = (
    ("--array", "INDICES", {}, "Submit a job array: 0-999, 0-10:2 or 1,3,5; 0-99%8 runs 8 at a time. `off`: none."),
    ("--parallel", "N", {"type": int}, "Most array tasks that run at once. For short trials, see `sweep --workers`."),
    ("--commands", "FILE", {"type": _FILE}, "Submit a job array: one task per line of FILE, counted from 0."),
    ("--repeat", "N", {"type": int}, "Run the command, or each line of FILE, N times with N seeds (`{seed}`)."),
    (
        "--stage",
        "PATH",
        {"multiple": True},
        "Copy PATH, from here or `data.root`, to each node's disk. May be repeated.",
    ),
    ("--image", "FILE", {}, "The container image; `off` for none."),
    ("--env", "NAME=VALUE", {"multiple": True}, "Set a variable of the ranks. May be repeated."),
    ("--module", "NAME", {"multiple": True}, "Load this module instead of the experiment's modules. May be repeated."),
    ("--restarts", "N", {"type": click.IntRange(0)}, "At most N further attempts after a failure or the time limit."),
    ("-n", "N", {"type": click.IntRange(1)}, "Ranks on all nodes together, in place of --ranks."),
    ("-c", "N", {"type": click.IntRange(1)}, "CPUs per rank, in place of --cpus."),
    ("--track", "MODE", {"type": _choice("MODE", _TRACK_MODE)}, "Trackers: off, offline, online or auto."),
    (
        "--resume",
        "RUN|PATH",
        {"shell_complete": run_view.complete_runs},
        "Resume from the newest complete checkpoint of a run (`last`: this project's newest) or in PATH.",
    ),
    ("--from-sweep", "SWEEP[/TRIAL]", {"type": run_view.SWEEP}, "Use the parameters of the best trial, or of TRIAL."),
)
flags = together(
    resources,
    common,
    *(click.option(flag, metavar=metavar, help=text, **kind) for flag, metavar, kind, text in _FLAGS),
    click.option("--debug", is_flag=True, help="Turn on the logs of NCCL and torch.distributed."),
    click.option(
        "--preflight/--no-preflight",
        default=None,
        help="Check nodes and network before ranks start, at most 90 s; end the attempt after a problem.",
    ),
    click.option("--smoke", is_flag=True, help="A smoke test: train a few steps, save, load and exit."),
    dry_runs,
    run_view.as_json,
)
"""The flags of `run` and `submit`, whose experiment or command stands before them."""


def overrides(values: Mapping[str, Any], settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """The given settings by dotted key, for `config.resolve`. A flag overrides `--set` of the same key.

    `values` may hold more than resources. Raises UsageError that names the flag.
    """
    given: dict[str, Any] = {}
    for text in settings:
        dotted, equals, typed = text.partition("=")
        if not equals or not dotted.strip():
            raise UsageError(f"`--set {text}` is not `KEY=VALUE`", hint="for example `--set resources.nodes=4`")
        given[dotted.strip()] = Typed(typed)
    if (short := values.get("short_time")) is not None:
        if values.get("time") is not None:
            raise UsageError("`-t` and `--time` both set the time limit", hint="keep one of them")
        values = {**values, "time": f"{short}m" if short.isdigit() else short}
    flags = [(name, f"resources.{name}", key) for name, key in _RESOURCES.items()]
    for name, setting, key in [*flags, ("launch", "launch.kind", _LAUNCH), ("track", "track.mode", _TRACK_MODE)]:
        value = values.get(name)
        if value is None or value == ():
            continue
        try:
            key.kind.parse(value)
        except BadValue as error:
            # An empty text unsets the setting; an empty amount comes from an unset variable of a shell.
            if not (key.is_optional and key.kind.metavar == "TEXT" and value in ("", ("",))):
                option = "-t" if name == "time" and short is not None else flag(name)
                raise UsageError(f"`{option}` {error}", hint=error.hint) from None
            value = ""
        given[setting] = value
    return given


def resolve(experiment: str | None, overrides: Mapping[str, Any], cluster: str | None) -> config.Resolved:
    """The settings of an experiment: the named one, else the only one, else those of a command without one."""
    here = Path.cwd()
    is_clear = experiment is not None or len(config.catalogue(here, os.environ).experiments) == 1
    return config.resolve(experiment, None if is_clear else (), overrides, cluster, here, os.environ)


def request(values: Mapping[str, Any], cluster: str | None) -> Request:
    """The request that the flags in `values` make; not every command has all of them."""
    context = click.get_current_context()
    experiment, command = values["experiment"], context.meta.get(COMMAND)
    is_open = experiment is None and not command and not values.get("commands")
    script_text = None
    if experiment == "-" or (is_open and _starts_of_input() == b"#!"):
        experiment, script_text = _OF_INPUT, _input()
        context.meta[TYPED_SCRIPT] = script_text  # the same command may run elsewhere
    is_script = script_text is not None or (experiment is not None and _is_job_script(experiment))
    if is_script:
        experiment, command = None, (experiment, *(command or ()))
    parameters: Mapping[str, Any] = {}
    elsewhere = None
    if source := values.get("from_sweep"):
        try:
            parameters = _parameters(source)
        except Elsewhere as error:
            elsewhere = error
    found = Request(
        experiment=experiment,
        command=command,
        is_script=is_script,
        script_text=script_text,
        overrides=overrides(values, values["settings"]) | _of_flags(values),
        cluster=cluster,
        each=values.get("commands"),
        tasks=values.get("n"),
        cpus_per_rank=values.get("c"),
        smoke=bool(values.get("smoke")),
        is_sent=not values.get("dry_run"),
        parameters=parameters,
        **{name: values.get(name) for name in ("name", "array", "parallel", "repeat", "resume")},
    )
    if elsewhere is not None:
        decide(found, Path.cwd(), os.environ)  # raises if the request is for a cluster elsewhere, perhaps the same
        raise elsewhere
    return found


def _parameters(source: str) -> Mapping[str, Any]:
    from serried.sweeps import results

    run, slash, number = source.rpartition("/")
    if slash and number.isdecimal():
        return results.parameters_of(run_view.select(run, own=True), int(number))
    return results.results_of(run_view.select(source, own=True)).best


_OF_INPUT = "stdin"
"""The name of a job script that standard input contains."""
_PATIENCE_MS = 1000
"""For the program that writes the script into a pipe."""


def _input() -> bytes:
    """The job script on standard input. Raises UsageError if there is none."""
    from serried.config import job_script

    text = b""
    with contextlib.suppress(OSError, AttributeError):  # it may be closed, or open for writing only
        if sys.stdin.isatty():
            console.note("type the job script; Ctrl-D ends it")
        text = sys.stdin.buffer.read(job_script.LONGEST + 1)
    if not text.strip():
        hint = "serried submit - < job.sh, or serried submit job.sh"
        raise UsageError("standard input is empty, and `-` reads a job script from it", hint=hint)
    return text


def _starts_of_input() -> bytes:
    """The first two bytes that wait on standard input, which stay there: they may be for the program of a run."""
    with contextlib.suppress(OSError):
        mode = os.fstat(0).st_mode
        if stat.S_ISREG(mode):
            return os.pread(0, 2, os.lseek(0, 0, os.SEEK_CUR))
        if stat.S_ISFIFO(mode):
            import ctypes  # only here: it takes milliseconds

            poll = select.poll()
            poll.register(0, select.POLLIN)
            poll.poll(_PATIENCE_MS)
            reader, writer = os.pipe()
            without_waiting = 2  # SPLICE_F_NONBLOCK
            ctypes.CDLL(None).tee(0, writer, 2, without_waiting)
            os.close(writer)
            begin = os.read(reader, 2)
            os.close(reader)
            return begin
    return b""


def _is_job_script(name: str) -> bool:
    if not _looks_like_job_script(name):
        return False
    if name not in config.catalogue(Path.cwd(), os.environ).experiments:
        return True
    console.note(f"`{name}` is an experiment and a file; the experiment is used: for the job script write `./{name}`")
    return False


def _of_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"debug": True} if values.get("debug") else {}
    if values.get("preflight") is not None:
        settings["preflight"] = values["preflight"]
    if values.get("stage"):
        settings["data.stage"] = [{"from": _from_here(path)} for path in values["stage"]]
    if values.get("image") is not None:
        settings["container.image"] = _from_here(values["image"])
    for text in values.get("env") or ():
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"(?a)[A-Za-z_]\w*", name):
            is_known = name in os.environ
            hint = f"ranks inherit `{name}` from this shell" if is_known else "for example `--env OMP_NUM_THREADS=4`"
            wrong = f"`{name}` in `--env` cannot be the name of a variable"
            raise UsageError(wrong if equals else f"`--env {name}` is not `NAME=VALUE`", hint=hint)
        if re.search(_PRIVATE, name):
            console.note(
                f"`{name}` looks like a secret, and `--env` puts it into the plan, which is a file: "
                f"`export {name}=…` and `--set 'environment.secrets=[\"{name}\"]'` keep it out"
            )
        settings[f"environment.env.{name}"] = value
    if values.get("module"):
        settings["environment.modules"] = list(values["module"])
    if values.get("restarts") is not None:
        settings["limit.restarts"] = values["restarts"]
    return settings


_PRIVATE = r"(?i)(?:^|_)(?:SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)|(?:API|ACCESS|PRIVATE)_?KEY"
"""Names of variables that usually hold a secret."""


def _from_here(path: str) -> str:
    """A path that exists here as an absolute one; any other belongs to the project."""
    return os.path.abspath(path) if path and os.path.lexists(path) else path  # noqa: PTH100 - links stay


def check_several(values: Mapping[str, Any]) -> None:
    """Raises UsageError for options of a single run, if several experiments are named."""
    if COMMAND in click.get_current_context().meta:
        raise UsageError("a command after `--` is one run, and several experiments are named before it")
    for key in ("array", "commands", "from_sweep", "name", "n", "parallel", "repeat", "resume"):
        if values.get(key) is not None:
            option = "-n" if key == "n" else flag(key)
            message = f"`{option}` is for one run, and several experiments are named"
            raise UsageError(message, hint="submit that by itself")


@contextlib.contextmanager
def progress(*, dry_run: bool = False) -> Iterator[Observe | None]:
    """Shows how an environment is built: a note for each step, and a moving line. None in a dry run."""
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
    """Print the plan in a few lines, with its notes and warnings, on stderr."""
    if several:
        console.say(console.style(f"{printable(prepared.plan.experiment)}, run {prepared.plan.run}", "head"))
    lines = plan_lines(prepared.plan, prepared.survey, prepared.revision, next(iter(prepared.trials), None))
    for label, text in lines:
        console.say_behind(f"{pad(label, 11)}  ", text, "quiet")
    say_about(prepared.notes, prepared.warnings)
    if several:
        console.say()


def say_about(notes: Iterable[str], warnings: Iterable[str]) -> None:
    for text in notes:
        console.note(text)
    for text in warnings:
        (console.warning if isinstance(text, Risk) else console.note)(text)


def agree(warnings: Iterable[str], question: str = "submit anyway?", *, yes: bool = False) -> None:
    """Ask about the risks among the warnings, which are printed. Raises UsageError if nobody can answer."""
    if yes or not any(isinstance(text, Risk) for text in warnings):
        return
    if not console.can_ask():
        hint = "correct the command, or pass `-y` to submit it as it is"
        raise UsageError("refusing to submit after a warning without confirmation", hint=hint)
    if not console.confirm(question):
        raise click.Abort


def dry_run(*prepared: Prepared, as_json: bool) -> None:
    """Print the plan, and the command that the scheduler would receive; with `--script`, all that it would receive.

    Of the environment only the names are printed.
    """
    if as_json and len(prepared) == 1:
        console.out_json(**_document(prepared[0]))
    elif as_json:
        console.out_json(submissions=[_document(one) for one in prepared])
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
        "user_script": _user_script(prepared),
        "snapshot": list(prepared.survey.files) if prepared.survey else None,
        "warnings": list(prepared.warnings),
        "risks": [{"code": text.code, "message": text} for text in prepared.warnings if isinstance(text, Risk)],
        "notes": list(prepared.notes),
    }


def _print(prepared: Prepared) -> None:
    names = sorted(prepared.environment)
    commands = [shlex.join(each.argv) for each in prepared.handovers]
    head = "the command" if len(commands) == 1 else f"the {len(commands)} commands"
    if not click.get_current_context().meta.get(_SCRIPT):
        more = [f"# … and {len(commands) - 1} more, for the other parts of the array"] if len(commands) > 1 else []
        console.out("\n".join([f"# {head} (with --script: the job script, too)", commands[0], *more]))
        return
    console.out("\n".join([f"# {head}", *commands, ""]))
    console.out(f"# variables that the job inherits\n{' '.join(names)}\n")
    console.out(f"# {prepared.plan.directory}/job.sh\n{prepared.script}")
    if setup := script.render_setup(prepared.plan):
        console.out(f"# {prepared.plan.directory}/setup.sh\n{setup}")
    if (text := _user_script(prepared)) is not None:
        console.out(f"# {prepared.plan.directory}/script, unmodified\n{text}")


def _user_script(prepared: Prepared) -> str | None:
    return prepared.user_script.decode("utf-8", "replace") if prepared.plan.script else None
