"""The Python environment of ranks: inherited, located, made active and checked.

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
import json
import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from serried import schedulers
from serried.base import shell
from serried.base.errors import EnvironmentFailed, Risk, UsageError, did_you_mean
from serried.config.shell_words import read_env_file
from serried.schema import names
from serried.schema.plan import Environment, Plan
from serried.schema.reasons import Reason

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
            hint = f"`export {name}=…` before submitting, or put it into the env_file"
            raise UsageError(f"the secret `{name}` is not set", hint=hint)
        environment[name] = value
    prefix = None if is_for_script else active_prefix(shell)
    environment["PATH"] = _path(wanted, prefix, environment.get("PATH"))
    if wanted.venv or wanted.conda:  # instead of the shell's active one; job.sh activates it again on the node
        for name in (*ACTIVE, "PYTHONHOME"):
            environment.pop(name, None)
        if wanted.venv:
            environment["VIRTUAL_ENV"] = wanted.venv
        elif wanted.conda:
            environment |= {"CONDA_PREFIX": wanted.conda, "CONDA_DEFAULT_ENV": Path(wanted.conda).name}
    elif prefix and "CONDA_PREFIX" not in environment:
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


def package_prefixes(plan: Plan, environment: Mapping[str, str]) -> list[Path]:
    """The prefixes from which the command may import: those of `python` on PATH, and of the program's own venv."""
    workdir = Path(plan.source.directory, plan.source.workdir)
    prefixes: dict[Path, None] = {}
    for program in dict.fromkeys([*plan.command[:1], "python", "python3"]):
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
    patterns = ("*",) if inherit == "all" else (*always, *(() if isinstance(inherit, str) else inherit))
    # Counts of CPUs that the user did not set: the scheduler of the job around us did.
    left_out = [
        name for _, its in schedulers.every() if its.dialect.job_variables[0] in shell for name in its.cpu_variables
    ]
    if shell.get("OMP_NUM_THREADS") in {shell.get(name) for name in left_out}:
        left_out.append("OMP_NUM_THREADS")
    foreign, selectors = ("SERRIED_", *schedulers.prefixes()), schedulers.selectors()
    environment = {} if inherit == "all" else account()
    for name, value in shell.items():
        is_wanted = any(fnmatchcase(name, pattern) for pattern in patterns)
        if name in selectors or (is_wanted and name not in left_out and not name.startswith(foreign)):
            environment[name] = value
    return environment


def account() -> dict[str, str]:
    """ACCOUNT as a login sets it: a submitting service, such as cron or CI, may have none of these variables."""
    with contextlib.suppress(KeyError):  # no account of this user id, as in some containers
        entry = pwd.getpwuid(os.getuid())
        return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return {}


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
    if environment.venv and not (Path(environment.venv) / "pyvenv.cfg").exists():
        raise _not_a_venv(environment.venv)
    if environment.conda and not environment.venv:
        environment = environment._replace(conda=str(find_conda(environment.conda, environ)))
    elif environment.modules and not (environment.venv or environment.build or inside):
        # Modules may bring a Python, which must not come before that of the active environment.
        active = environ.get("VIRTUAL_ENV") or None
        environment = environment._replace(venv=active, conda=None if active else environ.get("CONDA_PREFIX") or None)
    for prefix in filter(None, (environment.venv, environment.conda)):
        if os.pathsep in prefix:
            raise UsageError(f"cannot activate `{prefix}`: its path contains `:`, the separator of PATH")
        if not (Path(prefix) / "bin" / "python").exists():
            hint = "create the environment again; its original Python may have been removed"
            raise UsageError(f"`{prefix}/bin` has no Python", hint=hint)
    return environment


def _not_a_venv(prefix: str) -> UsageError:
    if Path(prefix).exists():
        return UsageError(f"`{prefix}` is not a virtual environment: it has no `pyvenv.cfg`")
    if "/.serried/environments/" in prefix:
        hint = "rebuild it: `serried submit`, or `serried rerun --new-code`"
        return UsageError(f"the virtual environment `{prefix}` does not exist any more", hint=hint)
    hint = "`venv = true` has Serried build one from your requirements, and keep it up to date"
    return UsageError(f"the virtual environment `{prefix}` does not exist", hint=hint)


def find_conda(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of the conda environment with this name or absolute path. Raises UsageError if there is none."""
    if "/" in name:
        if _is_conda(Path(name)):
            return Path(name)
        raise UsageError(
            f"`{name}` is not a conda environment: it has no `{HISTORY}`", hint="`conda info --envs` lists yours"
        )
    known: dict[str, Path] = {}
    for conda_name, path in [
        *(("base", root) for root in _conda_roots(environ) if _is_conda(root)),
        *((path.name, path) for path in _conda_environments(environ)),
    ]:
        known.setdefault(conda_name, path)
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
        with contextlib.suppress(OSError):
            yield from sorted(filter(_is_conda, folder.iterdir()))
    try:  # conda lists in this file all that it has created, in any place
        text = (_home(environ) / ".conda" / "environments.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    yield from (Path(line) for line in text.splitlines() if line.startswith("/") and _is_conda(Path(line)))


def _conda_roots(environ: Mapping[str, str]) -> list[Path]:
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


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def absences(plan: Plan, variables: Mapping[str, str], active: Path | None) -> Iterator[str]:
    """Warnings about programs that are not here, and about a virtual environment that ranks do not use.

    Compute nodes may have a program all the same. Nothing can be known if modules or `setup` may bring it, or a
    container, or bash looks for it.

    Raises UsageError for a program that cannot be there: ranks start here, or the word is a script or a whole command.
    """
    if plan.script is not None:
        interpreter = plan.script.interpreter[0]
        if interpreter.startswith("/") and not shutil.which(interpreter):
            file = f"the interpreter of `{PurePath(plan.script.path).name}`"
            yield _absent(plan, f"`{interpreter}`, {file}, is not here, or cannot be run")
        return
    environment, program, path = plan.environment, plan.command[0], variables.get("PATH")
    workdir = Path(plan.source.directory, plan.source.workdir)
    is_brought = environment.modules or environment.setup
    differs = plan.array is not None and plan.array.each
    if not (is_brought or plan.shell or plan.container or differs or "{" in program) and not shutil.which(
        str(workdir / program) if "/" in program else program, path=path
    ):
        where = f"`{workdir}`" if "/" in program else "PATH"
        text = f"the command's program `{program}` is not in {where} here, or cannot be run"
        yield _absent(plan, text, program, workdir)
    if plan.launch.kind == "mpirun" and not is_brought and not any(shutil.which(name, path=path) for name in MPI):
        yield _absent(plan, f"neither {' nor '.join(f'`{name}`' for name in MPI)} is in PATH here")
    is_chosen = active or environment.venv or environment.conda or is_brought
    if not (is_chosen or plan.container or "/" in program):
        unused = [name for name in USUAL if Path(plan.source.directory, name, "pyvenv.cfg").exists()]
        for name in unused[:1]:
            yield f'`{name}` is not active, so ranks use the Python on PATH: `environment.venv = "{name}"` selects it'


USUAL_PROGRAMS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "mpirun", "srun")


def _absent(plan: Plan, text: str, program: str = "", workdir: Path | None = None) -> Risk:
    """The risk that compute nodes lack a program, too. Raises UsageError if they must."""
    file = workdir / program if workdir and program else None
    hint = did_you_mean(program, USUAL_PROGRAMS) or "write its path, or add what has it: --module NAME"
    is_certain = plan.site.is_this_machine
    if " " in program and shutil.which(program.split(" ", 1)[0]):  # else the path may have a space
        is_certain, hint = True, "a program and its arguments are words of their own: leave the quotes out"
    elif file and file.is_file():
        is_certain = is_certain or "/" not in program
        in_folder = f"chmod +x {program}" if "/" in program else f"`./{program}` starts the file of this folder"
        hint = f"python {program}" if file.suffix == ".py" else in_folder
    if is_certain:
        raise UsageError(text, hint=hint, code=Reason.COMMAND_NOT_FOUND, about=program)
    return Risk(Reason.COMMAND_NOT_FOUND, f"{text}; compute nodes may have it")


def lines(environment: Environment) -> str:
    """Lines that make `environment` active; empty if everything is inherited."""
    modules = [["purge"]] if environment.module_purge else []
    for entry in environment.modules:  # a module's name, or `use DIR`
        verb, blank, folder = entry.partition(" ")
        modules.append([verb, folder.strip()] if blank and verb in MODULE_VERBS else ["load", entry])
    parts = []
    if modules:
        parts += [FIND_MODULE, LOAD, *(f"serried_try_module {shlex.join(words)}\n" for words in modules)]
    if environment.venv:
        parts.append(VENV.format(prefix=shlex.quote(environment.venv)))
    if environment.conda:
        name = environment.conda.rpartition("/")[2]
        parts.append(CONDA.format(prefix=shlex.quote(environment.conda), name=shlex.quote(name)))
    return "".join(parts)


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
print(json.dumps({"python": platform.python_version(), "prefix": sys.prefix, "PACKAGE": version("PACKAGE")}))
"""


def about(
    plan: Plan, variables: Mapping[str, str], container: Sequence[str] | None = None, package: str = "torch"
) -> dict[str, str | None]:
    """`python` (its version) and `prefix` of the active Python, and the version of `package` there, or None.

    Raises EnvironmentFailed.
    """
    code = ABOUT.replace("PACKAGE", package)
    return dict(json.loads(_run(plan, code, variables, container).splitlines()[-1]))


def check(plan: Plan, variables: Mapping[str, str], container: Sequence[str] | None = None) -> None:
    """Make the plan's environment active and run its `check` with the job's `variables`.

    `container` holds the words that enter one.

    Raises EnvironmentFailed with the last lines of the output.
    """
    code = plan.environment.check
    if code:
        _run(plan, code, variables, container)
    elif code is None and lines(plan.environment):
        _run(plan._replace(environment=plan.environment._replace(setup="")), "", variables, container)


def _run(plan: Plan, code: str, variables: Mapping[str, str], container: Sequence[str] | None) -> str:
    """The output of Python's `code` in there. Without code, activation is tried: not every program is in Python."""
    environment = plan.environment
    if container is not None:
        argv = [*container, "python3", "-c", code] if code else ["true"]
    elif code or environment.venv or environment.conda:
        argv = ["/bin/bash", "-c", 'exec "$(type -P python || echo python3)" -c "$1"', "bash", code]
    else:
        argv = ["true"]
    bash = ["/bin/bash", "-c", script(environment, 'exec "$@"'), "bash"]
    done = shell.run(
        [*bash, *argv], env=variables, cwd=Path(plan.source.directory, plan.source.workdir), timeout=SECONDS
    )
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
    prefix = environment.venv or environment.conda
    if prefix:
        return f"`{prefix}`"
    return f"the modules {' '.join(environment.modules)}" if environment.modules else "the active environment"
