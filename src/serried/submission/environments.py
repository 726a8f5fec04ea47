"""The Python environment of ranks: inherited, located, made active, checked, and how Serried builds one.

`job_environment` filters the submitting shell's variables here, once, so that `inherit` means the same on every
scheduler, which passes all of them on. They hold the values of secrets: these are in no command line, no plan and no
file of Serried. A later source overrides an earlier one: what `inherit` lets through, `env_file`, `env`, `secrets`.

The environment is the one that the settings name, or the active one. Conda environments are located by files that conda
keeps, without starting conda. Lines of bash make the environment active: for `environment.check` here, in job.sh, and
in builds. These lines call a function `serried_unable`, which each script defines: `serried_unable WHAT` reports WHAT
and the output in the file `$serried_output`, and does not return. Variables and functions begin with `serried_`: the
user may have exported any others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from serried import schedulers
from serried.base import shell
from serried.base.errors import EnvironmentFailed, MissingProgramError, UsageError, did_you_mean
from serried.config.shell_words import read_env_file
from serried.schema import names
from serried.schema.plan import Build, Environment, Plan, UserScript
from serried.submission import builds
from serried.submission.builds import Recipe

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
        or (
            (inherit == "all" or any(fnmatchcase(name, pattern) for pattern in wanted))
            and name not in left_out
            and not name.startswith(foreign)
        )
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


FORMAT = 1
"""Part of every hash: raised when the same inputs have to give another build."""
SOURCES = {
    "venv": ("uv.lock", "Pipfile", "requirements.txt", "pyproject.toml"),
    "conda": ("environment.yml", "environment.yaml"),
}
"""The first that exists is taken: a lock file is the most exact, a project's own description the least."""
PROBE = "import ensurepip, platform, sys, venv; print(sys.version, platform.machine())"
TORCH = "https://download.pytorch.org/whl"
PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_INCLUDED = re.compile(r"\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
_LISTED = re.compile(r"\s*-\s+[\"']?")
"""The text before pip's words in `environment.yml`."""
_LOCAL = re.compile(r"\s*(?:-e|--editable)?[\s=]*(\.{0,2}/[^\s;#\[]*|\.{1,2})(?:\[|\s|;|$)")


def recipe(environment: Environment, project: Path, environ: Mapping[str, str]) -> Recipe | None:
    """How to build the environment of a run; None if Serried does not build it.

    `environ` holds the variables that the run inherits. Raises UsageError if the file or the program is missing.
    """
    build = environment.build
    if build is None:
        return None
    source = source_of(build, project)
    install = install_commands(build, source)
    contents = {path: _hash(path) for path in sorted(set(inputs(source)))}
    bare = environment._replace(build=None, venv=None, conda=None, setup="", check=None)
    version = ""
    if build.kind == "conda":
        create = f"conda={shlex.quote(_conda(bare, environ))}\n"
    else:
        python, version = _python(build, bare, environ)
        if source.name == "uv.lock" and shutil.which("uv", path=environ.get("PATH")) is None:
            raise MissingProgramError(
                f"`{source}` needs `uv`, which is not on PATH",
                hint='`pip install uv`, or build from another file: `venv = "requirements.txt"`',
            )
        create = f'{shlex.quote(python)} -m venv --clear "$prefix"\n'
    paths = [os.path.relpath(path, project) for path in contents]
    key = builds.digest(FORMAT, build.kind, build.torch, environment.modules, version, paths, list(contents.values()))
    name = f"{build.kind}-{key}"
    return Recipe(
        folder=project / builds.ENVIRONMENTS,
        name=name,
        product="bin/python",
        source=str(source),
        step=f"building {name} from {source.name}",
        commands=f"{whole_lines(bare)}set -e\ncd -- {shlex.quote(str(source.parent))}\n{create}{install}",
    )


def source_of(build: Build, project: Path) -> Path:
    """The file that lists the packages. Raises UsageError if there is none."""
    if build.source:
        if not Path(build.source).is_file():
            raise UsageError(f"cannot build an environment: `{build.source}` does not exist")
        return Path(build.source)
    names = SOURCES[build.kind]
    source = next((project / name for name in names if (project / name).is_file()), None)
    if source is None:
        raise UsageError(
            f"cannot build an environment: `{project}` has no {', '.join(f'`{name}`' for name in names)}",
            hint=f'write one, or name the file: `{build.kind} = "cluster/{names[-2]}"`',
        )
    return source


def install_commands(build: Build, path: Path) -> str:
    """Lines of bash that install the packages listed in `path`. They run in the folder of `path`. Raises UsageError."""
    if build.kind == "conda":
        if build.torch:
            raise UsageError(
                "`environment.torch` works only with pip, not with conda",
                hint=f"name the build of PyTorch in `{path.name}`",
            )
        return (
            "[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option\n"
            f'"$conda" env create "$@" --quiet --prefix "$prefix" --file {shlex.quote(path.name)}\n'
        )
    if path.name == "uv.lock":
        if build.torch:
            raise UsageError(
                "`environment.torch` cannot change the packages in `uv.lock`",
                hint="name the index in `[tool.uv.sources]` of `pyproject.toml` and lock again",
            )
        return 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    if path.name == "Pipfile":
        packages = "--requirement /dev/stdin <<'REQUIREMENTS'"
    elif path.suffix == ".txt":
        packages = f"--requirement {shlex.quote(path.name)}"
    elif path.name == "pyproject.toml" and {"project", "build-system"} & _toml(path).keys():
        packages = "--editable ."
    else:
        raise UsageError(
            f"cannot build an environment from `{path}`",
            hint="use `uv.lock`, `Pipfile`, `requirements.txt` or another `.txt`, or `pyproject.toml` with `[project]`",
        )
    index = f" --extra-index-url {TORCH}/{build.torch}" if build.torch else ""
    # -I: packages on PYTHONPATH and in ~/.local are not in the environment, so pip must not count them as installed.
    pip = f'"$prefix/bin/python" -I -m pip install --disable-pip-version-check --no-input{index} {packages}\n'
    return f"{pip}{_pipfile_requirements(path)}REQUIREMENTS\n" if path.name == "Pipfile" else pip


def inputs(path: Path) -> Iterator[Path]:
    """The file, the requirements that it includes, and the descriptions of local projects."""
    yield path
    if path.name == "uv.lock":
        yield path.with_name("pyproject.toml")
    elif path.name == "Pipfile" and path.with_name("Pipfile.lock").exists():
        yield path.with_name("Pipfile.lock")
    elif path.name == "pyproject.toml":
        yield from _project_files(path.parent)
    else:
        yield from _required(path, {path})


def _required(path: Path, seen: set[Path]) -> Iterator[Path]:
    for text in _text(path).splitlines():
        line = text if path.suffix == ".txt" else _LISTED.sub("", text).rstrip("\"' ")
        if included := _INCLUDED.match(line):
            inner = path.parent / included[1]
            if inner not in seen and inner.is_file():
                seen.add(inner)
                yield inner
                yield from _required(inner, seen)
        elif local := _LOCAL.match(line):
            target = path.parent / local[1]
            yield from [target] if target.is_file() else _project_files(target)


def _project_files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in PROJECT_FILES if (folder / name).is_file())


_USUAL_INDEX = "pypi"
"""Pipenv writes the public index with this name into every Pipfile. It must not replace the index that pip uses."""
_CONDITIONS = ("os_name", "sys_platform", "platform_machine", "platform_system", "python_version")
_VERSION_CONTROL = ("git", "hg", "svn", "bzr")


def _pipfile_requirements(path: Path) -> str:
    """Pipfile.lock, else the Pipfile, as lines for pip. Pipenv is not needed: it chooses its own folders."""
    lock = path.with_name("Pipfile.lock")
    try:
        if lock.exists():
            locked = json.loads(lock.read_text(encoding="utf-8"))
            sources, packages = locked["_meta"].get("sources", []), locked["default"]
        else:
            wanted = tomllib.loads(path.read_text(encoding="utf-8"))
            sources, packages = wanted.get("source", []), wanted.get("packages", {})
        lines = [f"--extra-index-url {source['url']}" for source in sources if source.get("name") != _USUAL_INDEX]
        lines += [_requirement(name, package) for name, package in packages.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"cannot understand `{lock if lock.exists() else path}`: {error}") from None
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def _requirement(name: str, package: str | Mapping[str, Any]) -> str:
    if isinstance(package, str):
        return name if package == "*" else f"{name}{package}"
    extras = f"[{','.join(package['extras'])}]" if package.get("extras") else ""
    conditions = [f"({package['markers']})"] if package.get("markers") else []
    conditions += [f"{name} {package[name]}" for name in _CONDITIONS if name in package]
    markers = f" ; {' and '.join(conditions)}" if conditions else ""
    place = package.get("path") or package.get("file")
    if place:
        return f"{'--editable ' if package.get('editable') else ''}{place}{extras}{markers}"
    for system in _VERSION_CONTROL:
        if system in package:
            ref = f"@{package['ref']}" if package.get("ref") else ""
            below = f"#subdirectory={package['subdirectory']}" if package.get("subdirectory") else ""
            return f"{name}{extras} @ {system}+{package[system]}{ref}{below}{markers}"
    version = package.get("version", "*")
    return f"{name}{extras}{'' if version == '*' else version}{markers}"


def _python(build: Build, bare: Environment, environ: Mapping[str, str]) -> tuple[str, str]:
    """The Python to build with, and its version."""
    candidates = [build.python] if build.python else ["python3", sys.executable]
    errors = ""
    for candidate in candidates:
        words = f"exec {shlex.quote(candidate)} -I -c {shlex.quote(PROBE)}"
        argv = ["/bin/bash", "-c", script(bare, words)]
        done = shell.run(argv, env=environ, timeout=SECONDS)
        if done.status == 0:
            return candidate, done.stdout.strip()
        errors = errors or done.stderr.strip()
        if done.status == UNABLE:
            break
    details = "\n".join(errors.splitlines()[-LAST_LINES:])
    if done.status == UNABLE:
        raise EnvironmentFailed(
            f"cannot build the environment: {describe(bare)} cannot be used here",
            details=details,
            hint="`environment.modules` names them; `module avail` lists the modules of this machine",
        )
    raise EnvironmentFailed(
        f"`{candidates[0]}` cannot create virtual environments",
        details=details,
        hint="name another: `environment.python`; on Debian and Ubuntu `apt-get install python3-venv`",
    )


def _conda(bare: Environment, environ: Mapping[str, str]) -> str:
    program = conda_program(environ)
    if program is None and not bare.modules:
        raise MissingProgramError(
            "no `conda`, `mamba` or `micromamba` on PATH or in your home directory",
            hint="https://conda-forge.org/download, or the module that brings it: `environment.modules`",
        )
    return program or "conda"  # from one of the modules


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"`{path}` is not valid TOML: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


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
