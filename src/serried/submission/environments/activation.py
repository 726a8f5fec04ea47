"""The Python environment of ranks: located, made active, and checked.

An environment is the one that the settings name, or the active one. Conda environments are located by files that conda
keeps, without starting conda. Lines of bash make the environment active: for `environment.check` here, in job.sh, and
in builds. These lines call a function `serried_unable`, which each script defines: `serried_unable WHAT` reports WHAT
and the output in the file `$serried_output`, and does not return. Variables and functions begin with `serried_`: the
user may have exported any others.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from serried.base import shell
from serried.base.errors import EnvironmentFailed, UsageError, did_you_mean
from serried.schema.plan import Environment, Plan, UserScript
from serried.submission import builds

USUAL = (".venv", "venv", "env", "virtual_env")
"""Usual names of a project's virtual environment."""
MPI = ("mpirun", "mpiexec")
"""Either starts the ranks of `launch.kind = "mpirun"`, outside of any container."""
CONDA_PROGRAMS = ("conda", "mamba", "micromamba")
USUAL_ROOTS = ("miniforge3", "miniconda3", "mambaforge", "micromamba", "anaconda3", ".conda")
"""Folders in the home directory that installers of conda propose."""
HISTORY = "conda-meta"
"""A folder that every conda environment has."""

FIND_MODULE = """\
for serried_init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \\
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $serried_init ]] && source "$serried_init"
done
"""
"""`module` is a shell function, which a shell that is not a login shell may lack."""

LOAD = """\
serried_try_module() { # version 3 exits with status 0 in any case
  { module "$@" 2>"$serried_output" && ! grep -q ':ERROR:' "$serried_output"; } || serried_unable "'module $*' failed"
  cat "$serried_output" >&2
  : >"$serried_output"
}
"""

MODULE_VERBS = ("use", "unload")
"""Entries of `environment.modules` that begin with one of these and a blank load no module."""

VENV = """\
export VIRTUAL_ENV={prefix}
PATH=$VIRTUAL_ENV/bin:$PATH
unset PYTHONHOME CONDA_PREFIX CONDA_DEFAULT_ENV
[[ -x $VIRTUAL_ENV/bin/python ]] || serried_unable "no Python in $VIRTUAL_ENV/bin"
"""

CONDA = """\
export CONDA_PREFIX={prefix} CONDA_DEFAULT_ENV={name} CONDA_SHLVL=1 PYTHONNOUSERSITE=1
PATH=$CONDA_PREFIX/bin:$PATH
unset PYTHONHOME VIRTUAL_ENV
[[ -x $CONDA_PREFIX/bin/python ]] || serried_unable "no Python in $CONDA_PREFIX/bin"
for serried_hook in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
  # shellcheck source=/dev/null
  [[ -r $serried_hook ]] && source "$serried_hook"
done
"""
"""As `conda activate` does, without conda. ~/.local is left out, because Python would search it first."""

UNABLE = 70
"""Exit status of a script whose environment cannot be made active."""
PREAMBLE = """\
serried_output=$(mktemp 2>/dev/null || mktemp -p /tmp)
serried_unable() {
  echo "$1:" >&2
  tail -n 9 "$serried_output" >&2
  exit 70
}
"""
SETUP = """\
{find}serried_log=$(mktemp 2>/dev/null || mktemp -p /tmp)
serried_left() {{
  cat "$serried_log" >&2
  rm -f "$serried_log"
  kill $(jobs -p) 2>/dev/null || true
}}
trap 'serried_left; echo "a line of setup ended it" >&2; exit 70' EXIT
serried_workdir=$PWD
set -e
{{ :
{lines}
}} >"$serried_log" 2>&1
set +e
cd -- "$serried_workdir" || exit 70
trap 'serried_status=$?; serried_left; exit $serried_status' EXIT
({words})"""
"""Separates the output of `setup` from the command's, and ends the background processes of `setup` with the command."""
SECONDS = 600
"""`import torch` may take minutes on a slow file system."""
LAST_LINES = 12


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
            raise UsageError(f"cannot activate `{prefix}`: its path contains `:`, the separator of PATH")
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


def absent_interpreter(script: UserScript) -> tuple[str, ...]:
    """A warning if the interpreter of a job script is not here."""
    program, file = script.interpreter[0], PurePath(script.path).name
    if not program.startswith("/") or shutil.which(program):
        return ()
    return (f"`{program}`, the interpreter of `{file}`, is not here, or cannot be run; compute nodes may have it",)


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


def lines(environment: Environment) -> str:
    """Lines that make `environment` active; empty if everything is inherited."""
    modules = [["purge"]] if environment.module_purge else []
    modules += map(_module_words, environment.modules)
    parts = []
    if modules:
        parts += [FIND_MODULE, LOAD, *(f"serried_try_module {shlex.join(words)}\n" for words in modules)]
    if environment.venv:
        parts.append(VENV.format(prefix=shlex.quote(environment.venv)))
    if environment.conda:
        name = environment.conda.rpartition("/")[2]
        parts.append(CONDA.format(prefix=shlex.quote(environment.conda), name=shlex.quote(name)))
    return "".join(parts)


def _module_words(entry: str) -> list[str]:
    """The words after `module` for an entry of `environment.modules`: a module's name, or `use DIR`."""
    verb, blank, folder = entry.partition(" ")
    return [verb, folder.strip()] if blank and verb in MODULE_VERBS else ["load", entry]


def whole_lines(environment: Environment) -> str:
    """The same for a script of our own: with `serried_unable`, which exits with status 70."""
    activating = lines(environment)
    return f'{PREAMBLE}{activating}rm -f "$serried_output"\n' if activating else ""


def finder(setup: str) -> str:
    """Lines that define `module` if the lines of `setup` call it."""
    return FIND_MODULE if re.search(r"\b(module|ml)\b", setup) else ""


def script(environment: Environment, words: str) -> str:
    """The script that runs `words` of bash in the active `environment`, after `setup` as on a node."""
    setup = environment.setup
    if setup:
        words = SETUP.format(find=finder(setup), lines=setup, words=words)
    return whole_lines(environment) + words


ABOUT = """
import importlib.metadata as packages, json, platform, sys
def version(name):
    try:
        return packages.version(name)
    except packages.PackageNotFoundError:
        return None
print(json.dumps({"python": platform.python_version(), "prefix": sys.prefix, "torch": version("torch")}))
"""


def about(
    environment: Environment, variables: Mapping[str, str], workdir: Path, container: Sequence[str] | None = None
) -> dict[str, str | None]:
    """`python` (its version), `prefix` and `torch` (None without) of the active Python. Raises EnvironmentFailed."""
    output = _run(environment, ABOUT, variables, workdir, container)
    return dict(json.loads(output.splitlines()[-1]))


def check(
    environment: Environment, variables: Mapping[str, str], workdir: Path, container: Sequence[str] | None = None
) -> None:
    """Make it active and run its `check` with the job's `variables`; `container` holds the words that enter one.

    Raises EnvironmentFailed with the last lines of the output.
    """
    code = environment.check
    if code == "" or (code is None and not lines(environment)):
        return
    _run(environment if code else environment._replace(setup=""), code or "", variables, workdir, container)


def _run(
    environment: Environment,
    code: str,
    variables: Mapping[str, str],
    workdir: Path,
    container: Sequence[str] | None,
) -> str:
    """The output of Python's `code` in there. Without code, activation is tried: not every program is in Python."""
    if container is not None:
        argv = [*container, "python3", "-c", code] if code else ["true"]
    elif code or environment.venv or environment.conda:
        argv = ["/bin/bash", "-c", 'exec "$(type -P python || echo python3)" -c "$1"', "bash", code]
    else:
        argv = ["true"]
    bash = ["/bin/bash", "-c", script(environment, 'exec "$@"'), "bash"]
    done = shell.run([*bash, *argv], env=variables, cwd=workdir, timeout=SECONDS)
    if done.status == 0:
        return done.stdout
    place = describe(environment) if container is None else "the container"
    raise EnvironmentFailed(
        f"the check `{code.replace(chr(10), '; ')}` failed in {place} with status {done.status}"
        if code and code == environment.check
        else f"{place} cannot be used here: exit status {done.status}",
        details="\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:]),
        hint="nothing was submitted; `--set environment.check=false` skips the check",
    )


def describe(environment: Environment) -> str:
    """The environment in words."""
    prefix = environment.venv or environment.conda
    if prefix:
        return f"`{prefix}`"
    return f"the modules {' '.join(environment.modules)}" if environment.modules else "the active environment"
