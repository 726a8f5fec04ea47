"""Check all that can be checked, trackers too, and build or prepare what is missing, before the submit."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried import config, schedulers
from serried.base import NamedTuple, shell
from serried.base.errors import Risk, UsageError, did_you_mean, install_hint
from serried.base.text import counted, iso, spell
from serried.config import shell_words
from serried.records.record import Record, RecordUnreadable, new_id
from serried.schema import checkpoints, command_lines, names, tracking
from serried.schema.layout import RunDirectory
from serried.schema.names import COMPLETED
from serried.schema.plan import Environment, Plan
from serried.schema.reasons import Reason
from serried.schema.tracking import KEY, MLFLOW, OFF, OFFLINE, ONLINE, SERVER, TENSORBOARD, WANDB
from serried.submission import environments, snapshot
from serried.submission.deliver import Observe, Prepared, assemble, see_through, silent, sources_directory
from serried.submission.environments import choose
from serried.submission.plan import Settled, command_warnings, divide_indices, make_plan
from serried.submission.snapshot import Survey, site_folders

if TYPE_CHECKING:
    from serried.submission.builds import Builder, Recipe, Tick


def prepare(
    plan: Plan,
    resolved: config.Resolved,
    environ: Mapping[str, str],
    each: Sequence[Sequence[str]] = (),
    jobs: tuple[str, ...] = (),
    *,
    trials: Sequence[Mapping[str, Any]] = (),
    observe: Observe | None = silent,
) -> Prepared:
    """Check and collect all that `deliver` submits.

    `environ` is the submitting shell's environment. The scheduler starts the run after `jobs`. `observe` follows the
    build of an environment and the preparation of data; with None nothing is built, and the result can only be shown.

    Raises UsageError, for example for a missing working directory, program or secret, a project that is too large, an
    editable install that cannot be redirected, or data that is missing or too large; EnvironmentFailed if the
    environment fails its check; DataFailed if the command that prepares the data fails.
    """
    project = Path(plan.source.directory)
    is_script = plan.script is not None
    plan = divide(plan)
    _check_workdir(plan, project)
    _check_placeholders(plan, each)
    _check_side_commands(plan)
    if plan.container or any(tuple(words[:1]) == (names.RUNSCRIPT,) for words in (plan.command, *each)):
        from serried.submission import containers

        plan = containers.settle(plan, environ)
        containers.check_runscript(plan, each)
    plan, notes, cautions = settle_tracking(plan, environ)
    environ = _with_key(plan, environ)
    plan = settle_search(plan, environ)
    reports: tuple[str, ...] = ()
    if plan.environment.build:
        plan, _, reports = settle_environment(plan, resolved, environ, observe)
    is_built = not reports
    if is_built and not is_script:
        plan = plan._replace(environment=choose(plan.environment, environ, inside=plan.container is not None))
    environment = job_environment(plan, environ)
    if is_built:
        environments.check(plan, environment, entering(plan))
        reports = tuple(environments.absences(plan, environment, environments.active_prefix(environ)))
    if plan.data or resolved.experiment.data.prepare:
        from serried.submission import data

        plan, data_notes, _ = data.settle(plan, resolved, environment, observe)
        notes = (*notes, *data_notes)
    notes = (*notes, *_about_sent(plan, resolved, project))
    plan, surveyed, survey_warnings = _surveyed(plan, resolved, project)
    warnings = [*resolved.warnings]
    warnings += [] if is_script else command_warnings(resolved.experiment.command)
    warnings += [*reports, *survey_warnings]
    script = resolved.script.text.decode(errors="replace") if resolved.script else ""
    if surveyed is None and plan.site.is_this_machine and not is_script:
        _check_scripts(plan, each)
    if surveyed is not None:
        if not is_script:
            _check_paths(plan, each, surveyed)
        plan = _with_snapshot(plan, surveyed, environment)
        warnings += _about_snapshot(plan, surveyed)
        if not is_script:
            warnings += [*_path_warnings(plan, each, surveyed), *_unused_folders(plan, each, surveyed)]
        texts = [*_texts_of(plan, each, script, trials), ("`PYTHONPATH`", environment.get("PYTHONPATH", ""))]
        warnings += _paths_out(plan, texts, surveyed)
    started = [script] if resolved.script else [" ".join(command) for command in each or [plan.command]]
    warnings += [*cautions, *_missing_modules(plan, environment)]
    warnings += dict.fromkeys(itertools.chain.from_iterable(map(hidden_failures, started)))
    warnings += _unset_variables(plan, each, environment)
    prepared = assemble(plan, environment, each, tuple(warnings), jobs, may_lack_command=observe is None)
    return prepared._replace(
        notes=(*resolved.notes, *notes),
        survey=surveyed,
        revision=snapshot.read_revision(project),
        user_script=resolved.script.text if resolved.script else b"",
        trials=tuple(trials),
    )


def _about_sent(plan: Plan, resolved: config.Resolved, project: Path) -> Iterator[str]:
    """A note on the size of `data.send`, for another cluster. Raises UsageError for a path that does not exist."""
    sent = resolved.experiment.data.send
    snapshot.check_data(project, sent)
    if sent and resolved.is_elsewhere:
        sizes = [state.st_size for state in snapshot.data_files(project, sent).values()]
        what = f"{counted(len(sizes), 'file')}, {spell(sum(sizes))}"
        yield f"`data.send` is {what}; only content that is not on `{plan.site.name}` yet is sent"


BUILD_COMMAND = ("/bin/bash", "-c", 'exec /bin/bash "$SCRIPT" >>"$LOG" 2>&1')
BUILD_CPUS, BUILD_MEMORY_MB, BUILD_SECONDS = 4, 8 * 1024, 3600
"""Resources of a job that builds, beside a GPU where the profile wants one."""


def _recipe(plan: Plan, environ: Mapping[str, str]) -> Recipe | None:
    """How to build the environment of a plan; None if Serried does not build it. Raises UsageError."""
    if plan.environment.build is None:
        return None
    from serried.submission import builds

    return builds.environment_recipe(plan.environment, Path(plan.source.directory), _variables(plan, environ))


def recipe_of(plan: Plan, environ: Mapping[str, str], words: tuple[str, ...]) -> Recipe:
    """How to build the image of a plan, else its environment. `words` are options for the build of an image.

    Raises UsageError if the plan has neither, or both.
    """
    if plan.container:
        from serried.submission import containers

        return containers.image_to_build(plan, plan.container, environ, words)
    recipe = _recipe(plan, environ)
    if recipe is None:
        hint = "`venv = true` in `[experiments.NAME.environment]` builds one from your requirements"
        raise UsageError(
            f"`{plan.experiment}` uses an existing environment and no container; nothing to build", hint=hint
        )
    if words:
        hint = "leave them out: an environment is built from its file alone"
        raise UsageError(f"words after `--` are for the build of an image, and this is {recipe.source}", hint=hint)
    return recipe


def _variables(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    return environments.job_environment(plan.environment._replace(venv=None, conda=None), environ)


def settle_environment(
    plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], observe: Observe | None
) -> Settled:
    """The plan with the folder of its environment, built now if needed.

    With None for `observe` nothing is built: the folder is then the expected one. Raises EnvironmentFailed.
    """
    recipe = _recipe(plan, environ)
    if recipe is None or plan.environment.build is None:
        return Settled(plan)
    prefix = recipe.finished()
    if prefix is None and observe is None:
        warning = f"the environment is built first, from {recipe.source}: its content is unknown in this dry run"
        return Settled(_with_prefix(plan, recipe.expected), warnings=(warning,))
    if prefix is None and observe:
        from serried.submission import builds

        prefix = builds.provide(
            recipe, builder_of(plan, resolved, environ, plan.environment.build.where, observe), observe
        )
    return Settled(_with_prefix(plan, prefix or recipe.expected))


def _with_prefix(plan: Plan, prefix: Path) -> Plan:
    environment = plan.environment
    if environment.build and environment.build.kind == "conda":
        return plan._replace(environment=environment._replace(conda=str(prefix)))
    return plan._replace(environment=environment._replace(venv=str(prefix)))


def builder_of(
    plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], where: str, observe: Observe
) -> Builder:
    """Builds the environment or image of `plan` on this machine (`here`), or in a `job` or `gpu-job`.

    The job is a separate run with the account and partition of `plan`. Ctrl-C stops that run.
    """
    if where == "here":
        from serried.submission import builds

        return builds.here(_variables(plan, environ))

    def build(script: Path, log: Path, tick: Tick) -> str:
        settings = _resolved(plan, resolved, where, {"SCRIPT": str(script), "LOG": str(log)})
        job = make_plan(settings, run_id=new_id(), created=iso(time.time()))
        prepared = assemble(job, environments.job_environment(job.environment, environ))

        def report(record: Record) -> None:
            observe(f"run {record.id} builds it; `serried why {record.id}` shows its state")

        status = see_through(prepared, tick, report)
        if status.state == COMPLETED:
            return ""
        return f"run {status.id}: {status.verdict.message or status.state} (`serried logs {status.id}`)"

    return build


def _resolved(plan: Plan, resolved: config.Resolved, where: str, files: Mapping[str, str]) -> config.Resolved:
    """Settings of the run that builds, with the account and the queue of `plan`.

    It locates its `files` by variables, because braces in their names would be placeholders in a command.
    """
    of_run = plan.allocation
    resources = config.Resources(
        nodes=1,
        ranks=1,
        gpus=1 if where == "gpu-job" else 0,
        gpu_type=of_run.gpu_type if where == "gpu-job" else None,
        cpus=min(BUILD_CPUS, resolved.cluster.cpus_per_node or BUILD_CPUS),
        mem_per_node=BUILD_MEMORY_MB,
        time=BUILD_SECONDS,
        **{name: getattr(of_run, name) for name in ("account", "partition", "qos", "reservation", "constraint")},
        extra=schedulers.script(resolved.cluster.scheduler).required_options(of_run.extra),
    )
    of_ranks = plan.environment
    environment = Environment(
        env={**of_ranks.env, **files},
        check="",
        **{name: getattr(of_ranks, name) for name in ("secrets", "env_file", "inherit", "env_file_path")},
    )
    request = config.EnvironmentRequest(planned=environment)
    return resolved._replace(
        project=resolved.project._replace(snapshot=False),
        experiment=config.Experiment("environment", BUILD_COMMAND, resources=resources, environment=request),
        warnings=(),
    )


class Inspected(NamedTuple):
    plan: Plan
    """With the path of its environment, unless that is not built."""
    source: str | None
    """The file that it is built from; None if Serried does not build it."""
    ready: bool

    def to_json(self) -> dict[str, Any]:
        environment = self.plan.environment
        return {
            "prefix": environment.venv or environment.conda,
            "source": self.source,
            "ready": self.ready,
            "where": environment.build.where if environment.build else None,
            "modules": list(environment.modules),
            "module_purge": environment.module_purge,
            "setup": environment.setup,
            "check": environment.check,
            "container": self.plan.container.image if self.plan.container else None,
        }


def inspect_environment(plan: Plan, environ: Mapping[str, str]) -> Inspected:
    """Builds nothing. Raises UsageError for paths that do not exist."""
    from serried.submission import containers

    plan = containers.settle(plan, environ)
    recipe = _recipe(plan, environ)
    prefix = recipe.finished() if recipe else None
    if recipe:
        plan = _with_prefix(plan, prefix or recipe.expected)
    if not recipe or prefix:
        plan = plan._replace(environment=choose(plan.environment, environ, inside=bool(plan.container)))
    return Inspected(plan, recipe.source if recipe else None, ready=not recipe or bool(prefix))


def about_environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str | None]:
    """The Python in the environment, after its check has passed. Raises EnvironmentFailed."""
    variables = environments.job_environment(plan.environment, environ)
    environments.check(plan, variables, entering(plan))
    return environments.about(plan, variables, entering(plan))


def entering(plan: Plan) -> list[str] | None:
    """The words that enter its container here; None without one."""
    if plan.container is None:
        return None
    from serried.submission import containers

    return containers.entering(plan.container)


def unused_environments(
    plans: list[Plan], elsewhere: list[Plan], environ: Mapping[str, str], project: Path
) -> list[Path]:
    """Environments in `project` that neither a plan of `plans` nor an unfinished run uses.

    Plans for other clusters keep every environment from a file that only they name: their Python and modules cannot be
    seen from here.
    """
    from serried.submission import builds

    recipes = [_recipe(plan, environ) for plan in plans]
    kept = {recipe.finished() for recipe in recipes if recipe} | set(_in_use())
    spared = _sources(elsewhere, project) - _sources(plans, project)
    built = builds.built(project / builds.ENVIRONMENTS)
    return [prefix for prefix, source in built if prefix not in kept and source not in spared]


def _sources(plans: list[Plan], project: Path) -> set[str]:
    from serried.submission import builds

    sources = set()
    for build in filter(None, (plan.environment.build for plan in plans)):
        with contextlib.suppress(UsageError):
            sources.add(str(builds.source_of(build, project)))
    return sources


def _in_use() -> Iterator[Path]:
    """Environments of unfinished runs, as far as their records can be read."""
    from serried.records import index
    from serried.records.index import Selection
    from serried.records.status import has_ended_by_file

    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            if record.end is None and not has_ended_by_file(Selection(record, None)):
                environment = record.plan.environment
                yield from (Path(prefix) for prefix in (environment.venv, environment.conda) if prefix)


def describe_active(environ: Mapping[str, str]) -> str:
    """The environment of ranks without a setting, in words."""
    prefix = environments.active_prefix(environ)
    return f"{prefix}, active here" if prefix else "the `python` on PATH"


OPTUNA = "optuna"
TRACKERS = {TENSORBOARD: "tensorboard", WANDB: "wandb", MLFLOW: "mlflow-skinny"}
"""The package of each sink; the module has the sink's name."""


def settle_search(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """The plan with the journal of its search, and the Pythons that have Optuna. Raises UsageError without one."""
    sweep = plan.sweep
    if sweep is None or sweep.search is None:
        return plan
    prefix = environments.active_prefix(environ)
    pythons = [sys.executable] if importlib.util.find_spec(OPTUNA) is not None else []
    if prefix and any(Path(prefix).glob(f"lib/python3*/site-packages/{OPTUNA}")):
        pythons.append(str(Path(prefix) / "bin" / "python"))
    if not pythons:
        what = "a Bayesian search" if sweep.search.method == "bayes" else "`early_terminate`"
        message = f"{what} needs Optuna, which neither Serried's Python nor the active environment has"
        raise UsageError(message, hint=install_hint("sweeps"))
    journal = sweep.search.journal
    if not journal or not Path(journal).parents[1].is_dir():
        journal = str(RunDirectory(Path(plan.directory)).search)
    search = sweep.search._replace(journal=journal, pythons=tuple(dict.fromkeys(pythons)))
    return plan._replace(sweep=sweep._replace(search=search))


def settle_tracking(plan: Plan, environ: Mapping[str, str]) -> Settled:
    """The plan with the key among its secrets.

    Raises UsageError if the user requested a server that the job cannot use, or for a sweep at W&B without a key.
    """
    track = plan.track
    settings, project = {**environ, **plan.environment.env}, Path(plan.source.directory)
    if plan.sweep and plan.sweep.service:
        if track is not None and WANDB in track.sinks:
            if track.mode in (OFF, OFFLINE):
                raise UsageError(f"the trials of a sweep at W&B are online, but `track.mode` is `{track.mode}`")
            plan = plan._replace(track=track._replace(mode=ONLINE))
        from serried.sweeps import wandb_service

        key: tracking.AccountKey | None = wandb_service.key_of(settings, project)
    elif track is None or track.mode in (OFF, OFFLINE):
        return Settled(plan)
    else:
        if MLFLOW in track.sinks and track.mode == ONLINE and not environ.get(SERVER, plan.environment.env.get(SERVER)):
            message = f"`track.mode` is `online`, but `{SERVER}` is not set, which names the server of MLflow"
            raise UsageError(message, hint=f"`export {SERVER}=https://…`, or `--track offline` to write files")
        if WANDB not in track.sinks:
            return Settled(plan)
        key = tracking.find_key(settings, project)
        if key is None and track.mode == ONLINE:
            raise UsageError(
                f"`track.mode` is `online`, but wandb has no key in `{KEY}`, `.env`, `~/.netrc` or "
                f"`~/{tracking.CREDENTIALS}`",
                hint="run `wandb login`, or pass `--track offline` and upload the run later with `serried track sync`",
            )
    if key is None:
        note = "wandb has no key here, so the run logs offline; `serried track sync` uploads it"
        return Settled(plan, notes=(note,))
    environment = plan.environment
    if KEY not in (*environment.secrets, *environment.env_file, *environment.env):
        plan = plan._replace(environment=environment._replace(secrets=(*environment.secrets, KEY)))
    exposed = f"other users may read the key of wandb: `chmod 600 {key.source}`"
    return Settled(plan, warnings=(exposed,) if key.is_exposed else ())


def _missing_modules(plan: Plan, environment: Mapping[str, str]) -> Iterator[str]:
    """A warning for each sink that the ranks' environment lacks, as far as this machine can tell."""
    brought = plan.environment.modules or plan.environment.setup or plan.container or plan.environment.build
    sinks = set(plan.track.sinks) if plan.track and plan.track.mode != OFF else set()
    if plan.sweep and plan.sweep.service:
        sinks.add(WANDB)
    if not sinks or brought:
        return
    prefixes = environments.package_prefixes(plan, environment)
    sites = [site for prefix in prefixes for site in site_folders(prefix)]
    sites += [Path(folder) for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    for sink in sorted(sinks) if sites else ():
        if not any((site / sink).is_dir() for site in sites):
            package = TRACKERS[sink]
            yield f"`{sink}` is not installed for the ranks, so this tracker is left out: `pip install {package}`"


_AGENT = r"""(?<![\w.-])wandb["']?\s+agent(?=\s)(?:[^\n;&|]*?\s["']?(?P<id>[\w.-]+/[\w. -]+/[\w-]+)(?![\w/]))?"""
_COMMENT = r"(?m)(?:^|(?<=\s))#.*"
_BETWEEN = r"[;&|\n(`]"
_READS_IT = frozenset({"echo", "printf", "grep", "egrep", "sed", "awk"})
"""Programs for which an agent's command is text."""


def hidden_failures(text: str) -> Iterator[str]:
    """A warning for each agent of W&B that a command or a script starts itself."""
    for found in re.finditer(_AGENT, re.sub(_COMMENT, "", text.replace("\\\n", " "))):
        command = shell_words.without_prefix(re.split(_BETWEEN, found.string[: found.start()])[-1].split())
        if not command or command[0] not in _READS_IT:
            yield (
                "`wandb agent` exits with status 0 also if its trial fails, and the run is COMPLETED then: "
                f"`serried sweep {found['id'] or 'ENTITY/PROJECT/ID'}` ends with the status of the trial"
            )


MOST_PREQUEUED = 100
_UNKNOWN = r"[{$~*?]"
"""In words that only a placeholder or a shell completes."""
_ADDRESS = r"(?a)https?://[^\s@/?#]+(?:[/?#][!-~]*)?"
"""An address that urllib can post to: it reads a user before `@` as a part of the host."""
_AFTER = re.compile(r"(?<!\{)\{after\}(?!\})")
_TASK = re.compile(r"(?<!\{)\{task\}(?!\})")
_OF_A_RANK = r"(?<!\{)\{((?:local_)?rank)\}(?!\})"
_SET_ON_NODES = ("SERRIED_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_")


def _check_side_commands(plan: Plan) -> None:
    """Raises UsageError for a command of `beside` that cannot run: a warning after the run would come too late."""
    for index, side in enumerate(plan.beside):
        ours = next((found[1] for word in side.command if (found := re.search(_OF_A_RANK, word))), None)
        if ours is not None:
            message = f"command {index} of `beside` uses `{{{ours}}}`, but it runs once on each node, beside the ranks"
            raise UsageError(message, hint=f"`$SERRIED_NODE` is the node's number; `{{{{{ours}}}}}` is the word itself")
        done = shell.run(["/bin/bash", "-n"], input=side.command[0]) if side.shell else None
        if done is not None and (done.status or done.stderr):
            raise UsageError(f"command {index} of `beside` is not valid bash", details=done.stderr.strip())


def _words(plan: Plan, each: Sequence[Sequence[str]]) -> list[str]:
    return [*itertools.chain(plan.command, *each, *(side.command for side in plan.beside))]


def _check_placeholders(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """Raises UsageError for a placeholder without a value, before a node does."""
    if plan.script is not None:
        return
    words = _words(plan, each)
    known = [f"config.{name}" for name in (*plan.config, *(plan.sweep.parameters if plan.sweep else ()))]
    for setting in itertools.chain.from_iterable(map(command_lines.used, words)):
        if setting.startswith("config.") and setting not in known:
            hint = did_you_mean(setting, known) or f"set it, or write `{{{{{setting}}}}}` for the word itself"
            raise UsageError(f"the command uses `{{{setting}}}`, but `config` has no such setting", hint=hint)
    if not plan.after and any(map(_AFTER.search, words)):  # `{after}/results` would be a folder of the system
        hint = "`serried submit`, with `after` in the file or `--after RUN`; `serried run` never waits"
        raise UsageError("the command uses `{after}`, but this run has no dependency", hint=hint)
    if plan.array is None and any(map(_TASK.search, words)):
        message = "the command uses `{task}`, the index of an array's task, but this run is not an array"
        hint = "`--array 0-9`, or `array` in the experiment; `{task:--seed=}` disappears without one"
        raise UsageError(message, hint=hint)


def _unset_variables(plan: Plan, each: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Iterator[str]:
    """A warning for each `{env.NAME}` that the job does not inherit, where nothing on the node is known to set it."""
    if plan.script or plan.container or plan.environment.modules or plan.environment.setup:
        return
    for name in command_lines.used_variables(_words(plan, each)):
        if name not in environment and not name.startswith((*schedulers.prefixes(), *_SET_ON_NODES)):
            text = f"the command uses `{{env.{name}}}`, and `{name}` is not set here"
            yield Risk(Reason.VARIABLE_NOT_SET, f"{text}: ranks fail unless the node sets it")


def divide(plan: Plan) -> Plan:
    """The plan, with its array in as many jobs as the scheduler needs. Raises UsageError for too many jobs or tasks."""
    is_prequeued = plan.has_links and plan.limit.continue_by == names.PREQUEUED
    if is_prequeued and plan.limit.restarts >= MOST_PREQUEUED:  # a typing error must not fill the queue
        message = f"the run needs {plan.limit.restarts + 1:,} jobs in the queue, but {MOST_PREQUEUED} is the most"
        hint = "a longer `--time` needs fewer jobs; or run for a shorter time, then `serried rerun` continues it"
        raise UsageError(message, hint=hint)
    if plan.array is None:
        return plan
    limits = schedulers.cluster(plan.site.scheduler).array_limits(os.environ)
    indices = plan.array.indices
    if limits.jobs is not None and len(indices) >= limits.jobs:
        message = f"the array has {len(indices):,} tasks, but `{plan.site.name}` keeps fewer than {limits.jobs:,} jobs"
        hint = f"submit up to {limits.jobs // 2:,} at a time, because other users' jobs count, too"
        raise UsageError(message, hint=hint)
    size = limits.below or limits.tasks
    is_large = bool((limits.below and indices[-1] >= limits.below) or (limits.tasks and len(indices) > limits.tasks))
    offsets = divide_indices(indices, size if is_large else None, in_ranges=limits.in_ranges)
    if not is_large and len(offsets) < 2:
        return plan._replace(array=plan.array._replace(offsets=()))
    most, less = "only arrays whose indices are a range, such as `0-9` or `0-8:2`", "a range of tasks at a time"
    if is_large:
        most, less = f"arrays of up to {size:,} tasks", f"up to {size:,} tasks at a time"
    if is_prequeued:
        message = f"`{plan.site.name}` accepts {most}, and the later jobs of any other array cannot be queued now"
        raise UsageError(message, hint=f'submit {less}; on Slurm, `continue = "requeue"` in `[limit]` also works')
    holds = schedulers.traits(plan.site.scheduler).hold_options
    hold = next((word for word in plan.allocation.extra if word in holds), None)
    if hold and len(offsets) > 1:
        raise UsageError(
            f"`{plan.site.name}` accepts {most}, and the jobs of any other array are released together, "
            f"whatever `{hold}` in `resources.extra` says",
            hint=f"leave it out, or submit {less}",
        )
    return plan._replace(array=plan.array._replace(offsets=offsets))


def _check_workdir(plan: Plan, project: Path) -> None:
    if not project.is_dir():
        raise UsageError(f"the project's folder `{project}` does not exist")
    if not (project / plan.source.workdir).is_dir():
        if plan.script:
            raise UsageError(f"the folder in which the script starts does not exist: `{project / plan.source.workdir}`")
        hint = "`workdir` is relative to the folder of `serried.toml`"
        raise UsageError(f"the working directory `{plan.source.workdir}` is not in the project `{project}`", hint=hint)


def _with_key(plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """`environ`, with the key of wandb if the plan names it as a secret and only a file has it."""
    needs_key = plan.track is not None or (plan.sweep is not None and plan.sweep.service)
    if not needs_key or KEY in environ or KEY not in plan.environment.secrets:
        return environ
    key = tracking.find_key({**environ, **plan.environment.env}, Path(plan.source.directory))
    return {**environ, KEY: key.value} if key else environ


def job_environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    is_for_script = plan.script is not None
    variables = environments.job_environment(plan.environment, _with_key(plan, environ), is_for_script=is_for_script)
    webhook = plan.notify.webhook if plan.notify else None
    if webhook and not re.fullmatch(_ADDRESS, variables.get(webhook, "")):
        hint = "write `https://` and a host, without a user, spaces or non-ASCII letters; the value is a secret"
        raise UsageError(f"`{webhook}`, which `notify.webhook` names, is not a web address", hint=hint)
    return variables


@contextlib.contextmanager
def _or_in_place() -> Iterator[None]:
    """Suggest an in-place run if a snapshot is impossible, unless another machine sent the command."""
    try:
        yield
    except UsageError as error:
        if error.code == snapshot.IN_PLACE and names.AT not in os.environ:
            error.hint = f"{error.hint}, or run in place: `--set project.snapshot=false`"
        raise


@_or_in_place()
def _surveyed(plan: Plan, resolved: config.Resolved, project: Path) -> tuple[Plan, Survey | None, tuple[str, ...]]:
    """The plan, the survey of its snapshot, and warnings.

    Without a project file, the snapshot has the whole git repository: code may import from outside the current folder.
    """
    if not plan.source.snapshot:
        return plan, None, ()
    root = project if resolved.project.file else snapshot.root_of(project)
    if root == project:
        return plan, _survey(plan, resolved, project), ()
    within = os.path.relpath(os.path.realpath(project), root)
    source = plan.source._replace(directory=str(root), workdir=os.path.normpath(f"{within}/{plan.source.workdir}"))
    at_root = plan._replace(source=source)
    try:
        return at_root, _survey(at_root, resolved, root, within), ()
    except UsageError as error:
        caution = f"the snapshot has `{project}` alone, without the rest of its git repository: {error.message}"
        return plan, _survey(plan, resolved, project), (caution,)


def _survey(plan: Plan, resolved: config.Resolved, project: Path, within: str = os.curdir) -> Survey:
    """Paths of settings are relative to the folder `within`."""
    # Values of secrets are not copied, wherever their file is and whether git knows it or not.
    env_file = plan.environment.env_file_path
    secret = [os.path.relpath(env_file, project)] if env_file and Path(env_file).is_relative_to(project) else []
    link = [
        ("!" if pattern.startswith("!") else "") + os.path.normpath(f"{within}/{pattern.removeprefix('!')}")
        for pattern in resolved.project.link
    ]
    image = [Path(plan.container.image)] if plan.container else []  # ranks find it where it is
    apart = [folder for folder in (Path(plan.site.root), *image) if folder != project]
    return snapshot.survey(project, [*link, *map(glob.escape, secret)], leave_out=apart, start=plan.source.workdir)


@_or_in_place()
def _with_snapshot(plan: Plan, surveyed: Survey, environment: Mapping[str, str]) -> Plan:
    if not _is_held(surveyed, plan.source.workdir):
        raise UsageError(
            f"the working directory `{plan.source.workdir}` is not in the snapshot: git ignores it, or it is empty",
            hint="put a file into it that git does not ignore",
            code=snapshot.IN_PLACE,
        )
    prefixes = [] if plan.container else environments.package_prefixes(plan, environment)
    redirected = snapshot.redirect(surveyed, [site for prefix in prefixes for site in site_folders(prefix)])
    own = plan.array is not None and snapshot.fits_each(surveyed, len(plan.array.indices))
    return plan._replace(source=plan.source._replace(links=surveyed.links, python_path=redirected, tree_per_task=own))


def _about_snapshot(plan: Plan, surveyed: Survey) -> Iterator[str]:
    yield from surveyed.warnings
    yield from snapshot.growth(surveyed, sources_directory(plan))
    if plan.array is not None and not plan.source.tree_per_task:
        tasks, files = len(plan.array.indices), len(surveyed.files)
        yield (
            f"the {tasks:,} tasks share one working tree, because {tasks:,} of {files:,} files are too many: "
            "write to `{results}`, or use different relative paths in each task"
        )


def _is_held(survey: Survey, path: str) -> bool:
    """Whether the job has `path`: a file, a folder with files, or an entry behind a symbolic link or a linked entry."""
    if path == os.curdir:
        return True
    around = {path, *map(str, Path(path).parents)}
    if not around.isdisjoint(survey.links) or any(map(survey.has, around)):
        return True
    return any(entry.startswith(f"{path}/") for entry in (*survey.files, *survey.links))


def _check_paths(plan: Plan, each: Sequence[Sequence[str]], survey: Survey) -> None:
    """Raises UsageError for a script that the snapshot lacks. Otherwise the job would fail after its wait."""
    for command in _commands(plan, each):
        script = shell_words.script_of(command)
        if script is None or script.startswith("/") or re.search(_UNKNOWN, script):
            continue
        path = _in_snapshot(plan, script)
        if _is_held(survey, path):
            continue
        if _leads_out(path):
            hint = "submit from the folder with all of the code, and set `workdir` in its `serried.toml`"
            raise UsageError(f"`{script}` is outside of the snapshot of `{survey.project}`", hint=hint)
        if os.path.lexists(survey.project / path):
            hint = f'`link = ["{path}"]` under `[project]` links to it; or `git add` it'
            raise UsageError(f"`{script}` is not in the snapshot that the job gets: git ignores it", hint=hint)
        folder = Path(path).parent
        there = [Path(file).name for file in survey.files if Path(file).parent == folder]
        raise _no_script(survey.project / path, script, there)


def _check_scripts(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """Raises UsageError for a script that is not there, if it starts here, and nothing can bring it before."""
    if plan.container or plan.environment.setup or plan.data or plan.source.archive:
        return
    for command in _commands(plan, each):
        script = shell_words.script_of(command)
        if script is None or re.search(_UNKNOWN, script):
            continue
        path = Path(plan.source.directory, plan.source.workdir, script)
        if not os.path.lexists(path):
            there = [entry.name for entry in itertools.islice(path.parent.glob("*"), _MOST_CODE)]
            raise _no_script(path, script, there)


def _no_script(path: Path, script: str, there: Sequence[str]) -> UsageError:
    hint = did_you_mean(path.name, there) or "paths in a command are relative to `workdir`"
    return UsageError(f"`{os.path.normpath(path.parent)}` has no `{script}`", hint=hint)


def _path_warnings(plan: Plan, each: Sequence[Sequence[str]], survey: Survey) -> Iterator[str]:
    """A warning for each other relative path in the command that exists here and that the job will not have."""
    names_of_paths: dict[str, None] = {}
    for command in _commands(plan, each):
        script = shell_words.script_of(command)
        values = [word.partition("=")[2] if word.startswith("-") else word for word in command[1:]]
        names_of_paths |= dict.fromkeys(value for value in values if value != script)
    for name in names_of_paths:
        path = _in_snapshot(plan, name)
        if not name or name.startswith(("/", "-")) or re.search(_UNKNOWN, name):
            continue
        if _leads_out(path):
            yield Risk(
                Reason.NOT_IN_SNAPSHOT,
                f"`{name}` in the command is outside of the snapshot, and the job has only the snapshot: "
                "use its absolute path, or `--stage` it",
            )
        elif os.path.lexists(survey.project / path) and not _is_held(survey, path):
            text = (
                f"`{name}` in the command is not in the snapshot: git ignores it, or it is an empty folder. "
                f'`project.link = ["{path}"]` links to it'
            )
            # A folder may be for output, and is full at the second submit.
            yield text if (survey.project / path).is_dir() else Risk(Reason.NOT_IN_SNAPSHOT, text)


_ABSOLUTE = r"(?:^|(?<=[\s=:,;@'\"\[({<>|&])|(?<=^-[A-Za-z]))(/[^\s:,;'\"\])}<>|&{$~*?]*)([{$~*?]?)"
"""An absolute path in a text, and a character after it that only a placeholder or a shell completes."""


def _paths_out(plan: Plan, texts: Sequence[tuple[str, str]], survey: Survey) -> Iterator[str]:
    """A warning for absolute paths to the project's own files, of which the snapshot has a copy.

    Each of `texts` is a place and the text there.
    """
    # The whole of an option's value, too: a path may contain spaces.
    places = {
        path: (where, end)
        for where, text in reversed(texts)
        for path, end in ((f"/{text.partition('/')[2]}", ""), *re.findall(_ABSOLUTE, text))
    }
    staged = {os.path.realpath(item.source) for item in plan.data.stage} if plan.data else set()
    root = os.path.realpath(survey.project)
    found = []
    for path, (where, end) in reversed(places.items()):
        known = path.rpartition("/")[0] if end else path
        real = os.path.realpath(known)
        inside = os.path.relpath(real, root)
        if real not in staged and not _leads_out(inside) and _has_copy(survey, inside):
            relative = os.path.relpath(inside + path[len(known) :], plan.source.workdir)
            found.append((path, where, relative))
    if found:
        path, where, relative = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield (
            f"`{path}` in {where}{more} is the project's own, so later edits reach the job: "
            f"write `{relative}` for the copy in the snapshot"
        )


def _texts_of(
    plan: Plan, each: Sequence[Sequence[str]], script: str, trials: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """What the user wrote for the job and its ranks: each text after the name of its place."""
    for words in each or [plan.command if plan.script is None else plan.command[1:]]:
        yield from (("the command", word) for word in words)
    yield from (("the script", line) for line in script.splitlines() if not line.lstrip().startswith("#"))
    yield from (("`beside`", word) for side in plan.beside for word in side.command)
    for settings in (plan.config, *trials):
        yield from ((f"`{name}`", text) for name, value in settings.items() for text in _texts_in(value))
    yield from ((f"`{name}`", value) for name, value in plan.environment.env.items())
    yield "`environment.setup`", plan.environment.setup


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, Sequence)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def _has_copy(survey: Survey, path: str) -> bool:
    """Whether the snapshot has the file, or a file of the folder that is tracked or code: others may be outputs."""
    if survey.has(path):
        return True
    below = "" if path == os.curdir else f"{path}/"
    new = frozenset(survey.untracked)
    return any(file.startswith(below) and (file not in new or file.endswith(_CODE)) for file in survey.files)


_CODE = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
_MOST_CODE, _LARGEST_CODE = 2000, 1_000_000
"""Files, and bytes of each, that are read for a warning."""
_USES_SERRIED = rb"SERRIED_|\b(?:import|from)\s+serried\b"


def _unused_folders(plan: Plan, each: Sequence[Sequence[str]], survey: Survey) -> Iterator[str]:
    """Notes if results cannot come back, or the run cannot continue, as far as its command and its code show."""
    has_limit = plan.allocation.time_seconds is not None or not plan.site.is_this_machine
    words = [*_words(plan, each), plan.environment.setup, *plan.environment.env.values(), *_texts_in(plan.config)]
    used = {name for word in words for name in command_lines.used(word)}
    has_unused_results = bool(plan.result_patterns) and "results" not in used
    has_unused_restarts = plan.limit.restarts and has_limit and not plan.checkpoint and "checkpoints" not in used
    is_unused = has_unused_results or has_unused_restarts
    if not is_unused or plan.script or any("serried" in word.lower() for word in words):
        return
    files = [survey.project / name for name in survey.files if name.endswith(_CODE) and name != "serried.toml"]
    framework = None
    for path in files[:_MOST_CODE]:
        try:
            code = path.read_bytes() if path.stat().st_size <= _LARGEST_CODE else b""
        except OSError:
            continue
        if re.search(_USES_SERRIED, code):
            return
        framework = framework or checkpoints.framework_of_code(code)
    if has_unused_results:
        yield "nothing in the command writes to `{results}`, from which `data.results` copies files: serried docs data"
    if not has_unused_restarts:
        return
    options = checkpoints.OPTIONS.get(framework or "")
    page = "frameworks" if options else "time-limits"
    advice = f"add `{options}`; serried docs {page}" if options else f"serried docs {page}"
    yield f"nothing in the command saves to `{{checkpoints}}`, so no attempt follows the time limit: {advice}"


def _commands(plan: Plan, each: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Nothing for a shell's text, which may create files first."""
    if not plan.shell:
        yield from each or [plan.command]


def _in_snapshot(plan: Plan, name: str) -> str:
    return os.path.normpath(f"{plan.source.workdir}/{name}")


def _leads_out(path: str) -> bool:
    return path.split("/", 1)[0] == os.pardir
