"""Which environment a run has: the one that is asked for, found, or the one that is active."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from serried import shell
from serried.environments import conda
from serried.environments.store import FOLDER
from serried.errors import UsageError
from serried.plan import Environment, Plan

USUAL = (".venv", "venv", "env", "virtual_env")
"""What people call the virtual environment of a project."""
MPI = ("mpirun", "mpiexec")
"""Either starts the ranks of `launch.kind = "mpirun"`, outside of any container."""


def choose(environment: Environment, environ: Mapping[str, str], *, inside: bool = False) -> Environment:
    """`environment` with what it names found; `environ` is the submitting shell's.

    `inside` is whether ranks run in a container: then what is active here is not theirs.

    Raises UsageError for what is not there, or cannot be made active.
    """
    _check_syntax(environment)
    if environment.venv:
        _check_venv(environment.venv)
    elif environment.conda:
        environment = environment._replace(conda=str(conda.find(environment.conda, environ)))
    elif environment.modules and not environment.build and not inside:
        environment = _active(environment, environ)
    for prefix in filter(None, (environment.venv, environment.conda)):
        if os.pathsep in prefix:
            raise UsageError(f"no environment can be active in `{prefix}`: PATH cannot name a folder with a `:`")
        if not (Path(prefix) / "bin" / "python").exists():
            raise UsageError(
                f"there is no Python in `{prefix}/bin`", hint="what it was made from may have gone: make it again"
            )
    return environment


def absent_program(plan: Plan, variables: Mapping[str, str], workdir: Path) -> tuple[str, ...]:
    """A warning where the command's program is not here; compute nodes may have it all the same.

    Modules and lines of `setup` may bring one, and in a container, or for bash to find, there is no telling.
    """
    environment = plan.environment
    elsewhere = plan.shell or plan.container or environment.modules or environment.setup
    each = plan.array is not None and plan.array.each
    program = plan.command[0]
    if elsewhere or each or "{" in program:
        return ()
    if shutil.which(str(workdir / program) if "/" in program else program, path=variables.get("PATH")):
        return ()
    where = f"`{workdir}`" if "/" in program else "PATH"
    return (f"the command's program `{program}` is not in {where} here, or cannot be run; compute nodes may have it",)


def absent_mpi(plan: Plan, variables: Mapping[str, str]) -> tuple[str, ...]:
    """A warning where MPI is to start the ranks and is not here, nor brought by modules or lines of `setup`."""
    path = variables.get("PATH")
    brought = plan.environment.modules or plan.environment.setup
    if plan.launch.kind != "mpirun" or brought or any(shutil.which(name, path=path) for name in MPI):
        return ()
    return (f"neither {' nor '.join(f'`{name}`' for name in MPI)} is in PATH here; compute nodes may have one",)


def idle(plan: Plan, project: Path, active: Path | None) -> tuple[str, ...]:
    """A warning where the project has a virtual environment that the ranks will not have."""
    environment = plan.environment
    chosen = active or environment.venv or environment.conda or environment.modules or environment.setup
    if chosen or plan.container or "/" in plan.command[0]:
        return ()
    found = next((name for name in USUAL if (project / name / "pyvenv.cfg").exists()), None)
    if found is None:
        return ()
    return (f'`{found}` is here and not active, so ranks have the Python on PATH: `environment.venv = "{found}"`',)


def _active(environment: Environment, environ: Mapping[str, str]) -> Environment:
    """The one that is active now: modules may bring a Python too, which must not be found before."""
    if environ.get("VIRTUAL_ENV"):
        return environment._replace(venv=environ["VIRTUAL_ENV"])
    return environment._replace(conda=environ.get("CONDA_PREFIX") or None)


def _check_venv(prefix: str) -> None:
    if (Path(prefix) / "pyvenv.cfg").exists():
        return
    if not Path(prefix).exists():
        ours = str(FOLDER) in prefix
        raise UsageError(
            f"there is no virtual environment `{prefix}`" + (" any more" if ours else ""),
            hint="what runs with today's code and settings has it built again: `--new-code`, or `serried submit`"
            if ours
            else "`venv = true` has Serried build one from your requirements, and keep it up to date",
        )
    raise UsageError(f"`{prefix}` is no virtual environment: it has no `pyvenv.cfg`")


def _check_syntax(environment: Environment) -> None:
    done = shell.run(["/bin/bash", "-n"], input=environment.setup) if environment.setup else None
    if done and (done.status or done.stderr):
        raise UsageError("`environment.setup` is not what bash understands", details=done.stderr.strip())
