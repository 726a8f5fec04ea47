"""What a run with `[track]` needs from the submitting side: the key of wandb, and the sinks' modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from serried import inherit
from serried.config import shell_words
from serried.errors import UsageError
from serried.protocol import tracking
from serried.protocol.plan import Plan
from serried.protocol.tracking import KEY, MLFLOW, OFF, OFFLINE, ONLINE, SERVER, TENSORBOARD, WANDB
from serried.snapshot.editable import site_folders

MODULES = {TENSORBOARD: "tensorboard", WANDB: "wandb", MLFLOW: "mlflow"}
PACKAGES = {TENSORBOARD: "tensorboard", WANDB: "wandb", MLFLOW: "mlflow-skinny"}


def settle(plan: Plan, environ: Mapping[str, str]) -> tuple[Plan, tuple[str, ...], tuple[str, ...]]:
    """The plan with the key among its secrets, notes and warnings.

    Raises UsageError if the user requested a server that the job cannot use.
    """
    if plan.sweep and plan.sweep.service:
        return _settle_sweep(plan, environ)
    track = plan.track
    if track is None or track.mode in (OFF, OFFLINE):
        return plan, (), ()
    if MLFLOW in track.sinks and track.mode == ONLINE and not environ.get(SERVER, plan.environment.env.get(SERVER)):
        raise UsageError(
            f"`track.mode` is `online`, but `{SERVER}` is not set, which names the server of MLflow",
            hint=f"`export {SERVER}=https://…`, or `--track offline` to write files",
        )
    if WANDB not in track.sinks:
        return plan, (), ()
    key = tracking.find_key(_settings(plan, environ), Path(plan.source.directory))
    if key is None and track.mode == ONLINE:
        raise UsageError(
            f"`track.mode` is `online`, but wandb has no key in `{KEY}`, `.env`, `~/.netrc` or "
            f"`~/{tracking.CREDENTIALS}`",
            hint="run `wandb login`, or pass `--track offline` and upload the run later with `serried track sync`",
        )
    if key is None:
        return plan, ("wandb has no key here, so the run logs offline; `serried track sync` uploads it",), ()
    return _with_secret(plan), (), _exposed(key)


def _settle_sweep(plan: Plan, environ: Mapping[str, str]) -> tuple[Plan, tuple[str, ...], tuple[str, ...]]:
    """The plan of a sweep at W&B, whose trials are online. Raises UsageError without a key."""
    track = plan.track
    if track is not None and WANDB in track.sinks:
        if track.mode in (OFF, OFFLINE):
            raise UsageError(f"the trials of a sweep at W&B are online, but `track.mode` is `{track.mode}`")
        plan = plan._replace(track=track._replace(mode=ONLINE))
    from serried.submission import wandb_service

    key = wandb_service.key_of(_settings(plan, environ), Path(plan.source.directory))
    return _with_secret(plan), (), _exposed(key)


def _exposed(key: tracking.AccountKey) -> tuple[str, ...]:
    return (f"other users may read the key of wandb: `chmod 600 {key.source}`",) if key.is_exposed else ()


def with_key(plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """`environ`, with the key if the plan names it as a secret and only a file has it."""
    needs_key = plan.track is not None or (plan.sweep is not None and plan.sweep.service)
    if not needs_key or KEY in environ or KEY not in plan.environment.secrets:
        return environ
    key = tracking.find_key(_settings(plan, environ), Path(plan.source.directory))
    return {**environ, KEY: key.value} if key else environ


def missing_modules(plan: Plan, environment: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each sink that the ranks' environment lacks, as far as this machine can tell."""
    brought = plan.environment.modules or plan.environment.setup or plan.container or plan.environment.build
    sinks = set(plan.track.sinks) if plan.track and plan.track.mode != OFF else set()
    if plan.sweep and plan.sweep.service:
        sinks.add(WANDB)
    if not sinks or brought:
        return ()
    workdir = Path(plan.source.directory, plan.source.workdir)
    sites = [
        site for prefix in inherit.package_prefixes(plan.command, environment, workdir) for site in site_folders(prefix)
    ]
    sites += [Path(folder) for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    return tuple(
        f"`{MODULES[sink]}` is not installed for the ranks, so this tracker is left out: `pip install {PACKAGES[sink]}`"
        for sink in sorted(sinks)
        if sites and not any((site / MODULES[sink]).is_dir() for site in sites)
    )


_AGENT = re.compile(
    r"""(?<![\w.-])wandb["']?\s+agent(?=\s)(?:[^\n;&|]*?\s["']?(?P<id>[\w.-]+/[\w. -]+/[\w-]+)(?![\w/]))?""",
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_BETWEEN = re.compile(r"[;&|\n(`]")
_READS_IT = frozenset({"echo", "printf", "grep", "egrep", "sed", "awk"})
"""Programs for which an agent's command is text."""


def hidden_failures(text: str) -> Iterator[str]:
    """A warning for each agent of W&B that a command or a script starts itself."""
    for found in _AGENT.finditer(_COMMENT.sub("", text.replace("\\\n", " "))):
        command = shell_words.without_prefix(_BETWEEN.split(found.string[: found.start()])[-1].split())
        if not command or command[0] not in _READS_IT:
            yield (
                "`wandb agent` exits with status 0 also if its trial fails, and the run is COMPLETED then: "
                f"`serried sweep {found['id'] or 'ENTITY/PROJECT/ID'}` ends with the status of the trial"
            )


def _settings(plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that name the server and the key, with those of the experiment."""
    return {**environ, **plan.environment.env}


def _with_secret(plan: Plan) -> Plan:
    environment = plan.environment
    if KEY in (*environment.secrets, *environment.env_file, *environment.env):
        return plan
    return plan._replace(environment=environment._replace(secrets=(*environment.secrets, KEY)))
