"""Locate the environment of a run: the one that its settings name, or the active one.

Conda environments are located by files that conda keeps, without starting conda.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from serried import builds, shell
from serried.errors import UsageError, did_you_mean
from serried.plan import Environment, Plan

USUAL = (".venv", "venv", "env", "virtual_env")
"""Usual names of a project's virtual environment."""
MPI = ("mpirun", "mpiexec")
"""Either starts the ranks of `launch.kind = "mpirun"`, outside of any container."""
CONDA_PROGRAMS = ("conda", "mamba", "micromamba")
USUAL_ROOTS = ("miniforge3", "miniconda3", "mambaforge", "micromamba", "anaconda3", ".conda")
"""Folders in the home directory that installers of conda propose."""
HISTORY = "conda-meta"
"""A folder that every conda environment has."""


def choose(environment: Environment, environ: Mapping[str, str], *, inside: bool = False) -> Environment:
    """`environment` with the paths of what it names; `environ` is the submitting shell's.

    `inside`: the ranks run in a container, where the environment that is active here does not exist.

    Raises UsageError for an environment that does not exist or cannot be active.
    """
    if environment.setup:
        done = shell.run(["/bin/bash", "-n"], input=environment.setup)
        if done.status or done.stderr:
            raise UsageError("`environment.setup` is not valid bash", details=done.stderr.strip())
    if environment.venv:
        _check_venv(environment.venv)
    elif environment.conda:
        environment = environment._replace(conda=str(find_conda(environment.conda, environ)))
    elif environment.modules and not environment.build and not inside:
        # Modules may bring a Python, which must not come before that of the active environment.
        active = environ.get("VIRTUAL_ENV") or None
        environment = environment._replace(venv=active, conda=None if active else environ.get("CONDA_PREFIX") or None)
    for prefix in filter(None, (environment.venv, environment.conda)):
        if os.pathsep in prefix:
            raise UsageError(f"the environment `{prefix}` cannot be active: PATH cannot name a folder with a `:`")
        if not (Path(prefix) / "bin" / "python").exists():
            raise UsageError(
                f"`{prefix}/bin` has no Python",
                hint="create the environment again; its original Python may have been removed",
            )
    return environment


def _check_venv(prefix: str) -> None:
    if (Path(prefix) / "pyvenv.cfg").exists():
        return
    if Path(prefix).exists():
        raise UsageError(f"`{prefix}` is not a virtual environment: it has no `pyvenv.cfg`")
    if str(builds.ENVIRONMENTS) in prefix:
        raise UsageError(
            f"the virtual environment `{prefix}` does not exist any more",
            hint="rebuild it: `serried submit`, or `serried rerun --new-code`",
        )
    raise UsageError(
        f"the virtual environment `{prefix}` does not exist",
        hint="`venv = true` has Serried build one from your requirements, and keep it up to date",
    )


def find_conda(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of the conda environment with this name or absolute path. Raises UsageError if there is none."""
    if "/" in name:
        if _is_conda(Path(name)):
            return Path(name)
        raise UsageError(
            f"`{name}` is not a conda environment: it has no `{HISTORY}`", hint="`conda info --envs` lists yours"
        )
    known = dict(reversed([(path.name, path) for path in _conda_environments(environ)]))
    root = next((root for root in _conda_roots(environ) if _is_conda(root)), None)
    if root is not None:
        known["base"] = root
    if name not in known:
        names = ", ".join(f"`{name}`" for name in sorted(known))
        hint = f"there are {names}" if known else "give its folder instead"
        raise UsageError(f"the conda environment `{name}` does not exist", hint=did_you_mean(name, known) or hint)
    return known[name]


def _is_conda(folder: Path) -> bool:
    return (folder / HISTORY).is_dir()


def conda_program(environ: Mapping[str, str]) -> str | None:
    """A program that creates conda environments: on PATH, named by a variable of conda, or in a usual folder."""
    path = environ.get("PATH")
    candidates = [shutil.which(name, path=path) for name in CONDA_PROGRAMS]
    candidates += [environ.get(name) for name in ("CONDA_EXE", "MAMBA_EXE")]
    candidates += [str(root / "bin" / "conda") for root in _conda_roots(environ)]
    return next((program for program in candidates if program and os.access(program, os.X_OK)), None)


def _conda_environments(environ: Mapping[str, str]) -> Iterator[Path]:
    """All that conda knows. The first of several with one name counts."""
    variables = ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS")
    folders = [Path(part) for name in variables for part in environ.get(name, "").split(os.pathsep) if part]
    folders += [root / "envs" for root in _conda_roots(environ)]
    for folder in dict.fromkeys(folders):
        yield from sorted(path for path in _entries(folder) if _is_conda(path))
    try:  # conda lists in this file all that it has created, in any place
        text = (_home(environ) / ".conda" / "environments.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    yield from (Path(line) for line in text.splitlines() if line.startswith("/") and _is_conda(Path(line)))


def _conda_roots(environ: Mapping[str, str]) -> list[Path]:
    """Folders where conda itself may be installed."""
    roots = [Path(environ[name]) for name in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environ.get(name)]
    if environ.get("CONDA_EXE"):
        roots.append(Path(environ["CONDA_EXE"]).parent.parent)
    if environ.get("CONDA_PREFIX"):  # `root/envs/NAME`, or the root itself
        active = Path(environ["CONDA_PREFIX"])
        roots.append(active.parent.parent if active.parent.name == "envs" else active)
    program = shutil.which("conda", path=environ.get("PATH"))
    if program:
        roots.append(Path(os.path.realpath(program)).parent.parent)
    return list(dict.fromkeys([*roots, *(_home(environ) / name for name in USUAL_ROOTS)]))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def absent_program(plan: Plan, variables: Mapping[str, str], workdir: Path) -> tuple[str, ...]:
    """A warning if the command's program is not here; compute nodes may have it all the same.

    Nothing can be known if modules or `setup` may bring it, or a container, or bash looks for it.
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
    """A warning if MPI has to start the ranks, is not here, and neither modules nor `setup` may bring it."""
    path = variables.get("PATH")
    brought = plan.environment.modules or plan.environment.setup
    if plan.launch.kind != "mpirun" or brought or any(shutil.which(name, path=path) for name in MPI):
        return ()
    return (f"neither {' nor '.join(f'`{name}`' for name in MPI)} is in PATH here; compute nodes may have one",)


def idle(plan: Plan, project: Path, active: Path | None) -> tuple[str, ...]:
    """A warning if the project has a virtual environment that the ranks will not use."""
    environment = plan.environment
    chosen = active or environment.venv or environment.conda or environment.modules or environment.setup
    if chosen or plan.container or "/" in plan.command[0]:
        return ()
    unused = next((name for name in USUAL if (project / name / "pyvenv.cfg").exists()), None)
    if unused is None:
        return ()
    return (f'`{unused}` is not active, so ranks use the Python on PATH: `environment.venv = "{unused}"` selects it',)
