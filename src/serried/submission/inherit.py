"""The environment of a job, in which sbatch or the local supervisor is started.

It is filtered here, once, so that `inherit` means the same on every scheduler, which passes all of it on. It has the
values of secrets. They are in no command line, in no plan and in no file of Serried.

A later source overrides an earlier one: what `inherit` lets through, `env_file`, `env`, `secrets`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from serried import schedulers
from serried.base.errors import UsageError
from serried.config.shell_words import read_env_file
from serried.schema import names
from serried.schema.plan import Environment

ACCOUNT = ("HOME", "USER", "LOGNAME", "SHELL")
"""Variables of a login that no shell sets: inherited in any case."""

LOGIN = (*ACCOUNT, "LANG", "LC_*", "TERM", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
"""Variables of a fresh login: inherited in any case, but not by job scripts."""

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
"""Variables of the active environment: inherited in any case, but not by job scripts."""

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def job_environment(wanted: Environment, shell: Mapping[str, str], *, is_for_script: bool = False) -> dict[str, str]:
    """The job's environment, from the submitting `shell`'s.

    A job script gets no virtual environment that is not active in the shell, as with sbatch.

    Raises UsageError if a secret has no value, ConfigError if the env_file cannot be read.
    """
    shell = names.without_run(shell)
    file = read_env_file(Path(wanted.env_file_path)) if wanted.env_file_path else {}
    environment = _inherited(wanted.inherit, shell, ACCOUNT if is_for_script else (*LOGIN, *ACTIVE))
    environment |= {name: file[name] for name in wanted.env_file if name in file}
    environment |= wanted.env
    for name in wanted.secrets:
        value = shell.get(name, file.get(name))
        if value is None:
            raise UsageError(
                f"the secret `{name}` is not set",
                hint=f"`export {name}=…` before submitting, or put it into the env_file",
            )
        environment[name] = value
    prefix = None if is_for_script else active_prefix(shell)
    environment["PATH"] = _path(wanted, prefix, environment.get("PATH"))
    if wanted.venv or wanted.conda:
        return _activated(environment, wanted)
    if prefix and "CONDA_PREFIX" not in environment:
        environment["VIRTUAL_ENV"] = str(prefix)
    return environment


def active_prefix(shell: Mapping[str, str]) -> Path | None:
    """The virtual or conda environment that jobs use: the active one, else the one in which Serried is installed.

    So `.venv/bin/serried run -- python train.py` uses `.venv`. The environment of an installation as a tool (pipx,
    `uv tool`) does not count.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if shell.get(name):
            return Path(shell[name])
    own = Path(sys.prefix)
    if sys.prefix == sys.base_prefix or (own / "uv-receipt.toml").exists() or (own / "pipx_metadata.json").exists():
        return None
    return own


def package_prefixes(command: Sequence[str], environment: Mapping[str, str], workdir: Path) -> list[Path]:
    """The prefixes from which the command may import: those of `python` on PATH, and of the program's own venv."""
    prefixes: dict[Path, None] = {}
    for program in dict.fromkeys([*command[:1], "python", "python3"]):
        found = shutil.which(workdir / program if "/" in program else program, path=environment.get("PATH"))
        if found is None:
            continue
        # The `python` of a venv is a link in its prefix. Another link leads to its prefix.
        own = Path.cwd().joinpath(found).parent.parent
        prefixes[own if (own / "pyvenv.cfg").exists() else Path(os.path.realpath(found)).parent.parent] = None
    if environment.get("CONDA_PREFIX"):
        prefixes[Path(environment["CONDA_PREFIX"])] = None
    if not all((prefix / "pyvenv.cfg").exists() for prefix in prefixes):
        base = environment.get("PYTHONUSERBASE")
        prefixes |= {Path(base or Path.home() / ".local"): None, Path("/usr/local"): None}
    return list(prefixes)


def _inherited(inherit: str | tuple[str, ...], shell: Mapping[str, str], always: tuple[str, ...]) -> dict[str, str]:
    wanted = (*always, *(() if isinstance(inherit, str) else inherit))
    login = {} if inherit == "all" else account()
    left_out = _set_by_the_job(shell)
    foreign, selectors = ("SERRIED_", *schedulers.prefixes()), schedulers.selectors()
    return login | {
        name: value
        for name, value in shell.items()
        if name in selectors
        or ((inherit == "all" or _matches(name, wanted)) and name not in left_out and not name.startswith(foreign))
    }


def account() -> dict[str, str]:
    """ACCOUNT as a login sets it: a submitting service, such as cron or CI, may have none of these variables."""
    with contextlib.suppress(KeyError):  # no account of this user id, as in some containers
        entry = pwd.getpwuid(os.getuid())
        return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return {}


def _set_by_the_job(shell: Mapping[str, str]) -> list[str]:
    """Counts of CPUs that the user did not set: the scheduler of the job around us did."""
    of_job = [
        name for _, its in schedulers.every() if its.dialect.job_variables[0] in shell for name in its.cpu_variables
    ]
    counts = {shell.get(name) for name in of_job}
    return [*of_job, *(["OMP_NUM_THREADS"] if shell.get("OMP_NUM_THREADS") in counts else [])]


def _path(wanted: Environment, active: Path | None, path: str | None) -> str:
    """PATH, with the programs of the chosen environment first, else those of the active one."""
    if path is None:
        called = [name for _, its in schedulers.every() for name in its.programs]
        folders = [str(Path(found).parent) for name in called if (found := shutil.which(name))]
        path = os.pathsep.join(dict.fromkeys((*SYSTEM_PATH, *folders)))
    chosen = wanted.venv or wanted.conda
    prefix = Path(chosen) if chosen else active
    if prefix is None or "PATH" in wanted.env:
        return path
    programs = str(prefix / "bin")
    if not chosen and programs in path.split(os.pathsep):
        return path
    return os.pathsep.join([programs, *(part for part in path.split(os.pathsep) if part != programs)])


def _activated(environment: dict[str, str], wanted: Environment) -> dict[str, str]:
    """With the chosen environment instead of the shell's active one. job.sh activates it again on the node."""
    left = {name: value for name, value in environment.items() if name not in (*ACTIVE, "PYTHONHOME")}
    if wanted.venv:
        return {**left, "VIRTUAL_ENV": wanted.venv}
    return {**left, "CONDA_PREFIX": str(wanted.conda), "CONDA_DEFAULT_ENV": Path(str(wanted.conda)).name}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
