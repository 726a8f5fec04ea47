"""Everything that can be refused is refused, and what is missing is made, before anything is submitted."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serried import config, inherit, schedulers, snapshot
from serried.builds import Observe, silent
from serried.environments import activation, containers
from serried.environments.select import absent_mpi, absent_program, choose, idle
from serried.errors import UsageError, did_you_mean
from serried.plan import Plan
from serried.planning import arrays
from serried.planning.launch import warnings as command_warnings
from serried.protocol import names, settings
from serried.records.record import Record
from serried.snapshot import Survey
from serried.snapshot.editable import site_folders
from serried.submission import data, environment_build, path_check
from serried.submission.prepared import Prepared, assemble

MOST_PREQUEUED = 100


def prepare(
    plan: Plan,
    resolved: config.Resolved,
    environ: Mapping[str, str],
    each: Sequence[Sequence[str]] = (),
    jobs: tuple[str, ...] = (),
    *,
    observe: Observe | None = silent,
) -> Prepared:
    """Check and collect what `deliver` hands over.

    `environ` is the submitting shell's environment, `jobs` are those that it comes after. `observe` is told how an
    environment, or data, is made that is not there yet; with None it is not, and what is prepared can only be shown.

    Raises UsageError for whatever cannot be: a missing working directory, program or secret, a project that is too
    large, an editable install that cannot be redirected, data that is not there or too much; EnvironmentFailed where
    the environment fails its check, and DataFailed where what makes the data does.
    """
    project = Path(plan.source.directory)
    _check_jobs(plan)
    plan = _divided(plan)
    _check_workdir(plan, project)
    _check_settings(plan, each)
    _check_after(plan, each)
    plan = containers.settle(plan, environ)
    containers.check_runscript(plan, each)
    plan, said = environment_build.settle(plan, resolved, environ, observe)
    if not said:
        inside = plan.container is not None
        plan = dataclasses.replace(plan, environment=choose(plan.environment, environ, inside=inside))
    environment = _environment(plan, environ)
    if not said:
        workdir = project / plan.source.workdir
        activation.check(plan.environment, environment, workdir, containers.entering(plan))
        said = (
            *absent_program(plan, environment, workdir),
            *absent_mpi(plan, environment),
            *idle(plan, project, inherit.active_prefix(environ)),
        )
    plan, noted = data.settle(plan, resolved, environment, observe)
    plan, surveyed, cautions = _surveyed(plan, resolved, project)
    if surveyed is not None:
        path_check.check(plan, each, surveyed)
        plan = _with_snapshot(plan, surveyed, environment)
        cautions = (*cautions, *_about_snapshot(plan, surveyed), *path_check.warnings(plan, each, surveyed))
    warnings = (
        *resolved.warnings,
        *command_warnings(resolved.experiment.command),
        *said,
        *cautions,
    )
    made = assemble(plan, environment, each, warnings, jobs)
    notes = (*resolved.notes, *noted)
    return dataclasses.replace(made, notes=notes, survey=surveyed, revision=snapshot.read_revision(project))


def prepare_recorded(
    plan: Plan, code: Record, environ: Mapping[str, str], each: Sequence[Sequence[str]], warnings: tuple[str, ...]
) -> Prepared:
    """The same for a plan that has run before, with the `code` that it had then: its archive, links and paths.

    Raises UsageError where the archive is gone, or a secret is not set.
    """
    if plan.source.archive is None or not Path(plan.source.archive).is_file():
        raise UsageError(
            f"the code of run `{code.id}` is not there any more: `{plan.source.archive}`",
            hint="`--new-code` takes the project as it is now; commit and diff of then are in the record",
        )
    containers.check(plan)
    data.check(plan)
    choose(plan.environment, environ)
    plan = _divided(plan)
    return dataclasses.replace(assemble(plan, _environment(plan, environ), each, warnings), code_of=code)


_ADDRESS = re.compile(r"https?://[^\s@/?#]+(?:[/?#][!-~]*)?", re.ASCII)
"""What urllib can post to: it takes a user before `@` for a part of the host."""

_AFTER = re.compile(r"(?<!\{)\{after\}(?!\})")

_SETTING = re.compile(
    r"\{\{SETTING\}\}|\{(SETTING)(?::(?:[^{}\s]*=|-[^{}\s]*|)|\?[^{}\s]*)?\}".replace("SETTING", settings.PLACEHOLDER)
)


def _check_settings(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """`{config.lr}` needs an `lr`; it is known here, and would be found out on the node."""
    for word in itertools.chain(plan.command, *each):
        for found in filter(None, _SETTING.findall(word)):
            if found.removeprefix("config.") not in plan.config:
                known = [f"config.{name}" for name in plan.config]
                raise UsageError(
                    f"the command says `{{{found}}}`, and `config` has no such setting",
                    hint=did_you_mean(found, known) or f"set it, or write `{{{{{found}}}}}` for the word itself",
                )


def _check_after(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """`{after}` of a run that comes after none would be an empty word, and `{after}/results` a folder of the system."""
    if not plan.after and any(_AFTER.search(word) for word in itertools.chain(plan.command, *each)):
        raise UsageError(
            "the command says `{after}`, the directory of a run that it comes after, and it comes after none",
            hint="`serried submit`, with `after` in the file or `--after RUN`; `serried run` waits for none",
        )


def _check_jobs(plan: Plan) -> None:
    """All jobs of a prequeued run are in the queue at once: a slip in its total time would fill that for everybody."""
    if plan.has_links and plan.limit.form == names.PREQUEUED and plan.limit.restarts >= MOST_PREQUEUED:
        raise UsageError(
            f"{plan.limit.restarts + 1:,} jobs would be queued now, and {MOST_PREQUEUED} is the most for one run",
            hint="a longer `--time` makes fewer links; or ask for fewer, and `serried rerun` goes on from the last",
        )


def _divided(plan: Plan) -> Plan:
    """The plan, its array in as many jobs as the scheduler needs for it. Raises UsageError where it is too large."""
    if plan.array is None:
        return plan
    limits = schedulers.site(plan.site.scheduler).array_limits(os.environ)
    indices = plan.array.indices
    if limits.jobs is not None and len(indices) >= limits.jobs:
        raise UsageError(
            f"the array has {len(indices):,} tasks, and `{plan.site.name}` keeps fewer than {limits.jobs:,} jobs",
            hint=f"submit up to {limits.jobs // 2:,} at a time, because other users' jobs count too",
        )
    size = limits.below or limits.elements
    is_large = bool(
        (limits.below and indices[-1] >= limits.below) or (limits.elements and len(indices) > limits.elements)
    )
    offsets = arrays.divide(indices, size) if size and is_large else ()
    if offsets and plan.has_links and plan.limit.form == names.PREQUEUED:
        raise UsageError(
            f"`{plan.site.name}` takes arrays of up to {size:,} tasks, and the further jobs of a larger one cannot "
            "all be queued now",
            hint=f'submit up to {size:,} tasks at a time; on Slurm, `continue = "requeue"` in `[limit]` also works',
        )
    holds = schedulers.traits(plan.site.scheduler).hold_options
    hold = next((word for word in plan.allocation.extra if word in holds), None)
    if hold and len(offsets) > 1:
        raise UsageError(
            f"`{plan.site.name}` takes arrays of up to {size:,} tasks, and the jobs of a larger one are released "
            f"together, whatever `{hold}` in `resources.extra` says",
            hint=f"leave it out, or submit up to {size:,} tasks at a time",
        )
    return dataclasses.replace(plan, array=plan.array._replace(offsets=offsets))


def _check_workdir(plan: Plan, project: Path) -> None:
    if not project.is_dir():
        raise UsageError(f"the project's folder `{project}` is not there")
    if not (project / plan.source.workdir).is_dir():
        raise UsageError(
            f"the working directory `{plan.source.workdir}` is not in the project `{project}`",
            hint="`workdir` is relative to the folder of `serried.toml`",
        )


def _environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    made = inherit.job_environment(plan.environment, environ)
    webhook = plan.notify.webhook if plan.notify else None
    if webhook and not _ADDRESS.fullmatch(made.get(webhook, "")):
        raise UsageError(
            f"`{webhook}`, which `notify.webhook` names, holds no address to post to",
            hint="`https://` with a host, and no user, space or letter beyond ASCII: the value itself is not shown",
        )
    return made


def _surveyed(plan: Plan, resolved: config.Resolved, project: Path) -> tuple[Plan, Survey | None, tuple[str, ...]]:
    """The plan, what its snapshot takes, and a caution.

    A project that no file describes is a part of its git repository: the snapshot is of all that, as its code may
    import from beside the folder where the command was typed.
    """
    if not plan.source.snapshot:
        return plan, None, ()
    root = project if resolved.project.file else snapshot.root_of(project)
    if root == project:
        return plan, _survey(plan, resolved, project), ()
    within = os.path.relpath(os.path.realpath(project), root)
    source = plan.source._replace(directory=str(root), workdir=os.path.normpath(f"{within}/{plan.source.workdir}"))
    at_root = dataclasses.replace(plan, source=source)
    try:
        return at_root, _survey(at_root, resolved, root, within), ()
    except UsageError as error:
        caution = f"the snapshot is of `{project}` alone, as its git repository cannot be taken: {error.message}"
        return plan, _survey(plan, resolved, project), (caution,)


def _survey(plan: Plan, resolved: config.Resolved, project: Path, within: str = os.curdir) -> Survey:
    """`within` is the folder that paths of settings are relative to."""
    # Values of secrets are not copied, wherever their file is and whether git knows it or not.
    env_file = plan.environment.env_file_path
    secret = [os.path.relpath(env_file, project)] if env_file and Path(env_file).is_relative_to(project) else []
    link = [*(_linked(path, within) for path in resolved.project.link), *map(glob.escape, secret)]
    image = [Path(plan.container.image)] if plan.container else []  # ranks find it where it is
    apart = [folder for folder in (Path(plan.site.root), *image) if folder != project]
    return snapshot.survey(project, link, leave_out=apart, start=plan.source.workdir)


def _linked(pattern: str, within: str) -> str:
    mark = "!" if pattern.startswith("!") else ""
    return mark + os.path.normpath(f"{within}/{pattern.removeprefix('!')}")


def _with_snapshot(plan: Plan, surveyed: Survey, environment: Mapping[str, str]) -> Plan:
    workdir = surveyed.project / plan.source.workdir
    prefixes = [] if plan.container else inherit.package_prefixes(plan.command, environment, workdir)
    sites = [site for prefix in prefixes for site in site_folders(prefix)]
    redirected = snapshot.redirect(surveyed, sites)
    own = plan.array is not None and snapshot.fits_each(surveyed, len(plan.array.indices))
    source = plan.source._replace(links=surveyed.links, python_path=redirected, tree_per_element=own)
    if plan.source.workdir != os.curdir and not _is_in(surveyed, plan.source.workdir):
        raise UsageError(
            f"the working directory `{plan.source.workdir}` is not in the snapshot: git ignores it, or it is empty",
            hint="put a file into it that git does not ignore, or run in place: `--set project.snapshot=false`",
        )
    return dataclasses.replace(plan, source=source)


def _about_snapshot(plan: Plan, surveyed: Survey) -> Iterator[str]:
    yield from surveyed.warnings
    yield from snapshot.growth(surveyed, Path(plan.directory).parents[1] / "sources")
    if plan.array is not None and not plan.source.tree_per_element:
        elements, files = len(plan.array.indices), len(surveyed.files)
        yield (
            f"the {elements:,} tasks share one working tree, as {elements:,} of {files:,} files are too many: "
            "what they write by relative paths needs names of its own, or `{results}`"
        )


def _is_in(surveyed: Survey, folder: str) -> bool:
    if any(folder == link or folder.startswith(f"{link}/") for link in surveyed.links):
        return True
    return any(path.startswith(f"{folder}/") for path in (*surveyed.files, *surveyed.links))
