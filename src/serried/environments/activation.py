"""Make an environment active and run something in it: for `environment.check` here, in job.sh, and in builds.

The lines of bash call a function `unable`, which each script defines: `unable WHAT` reports WHAT and the output in the
file `$output`, and does not return.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried import shell
from serried.errors import EnvironmentFailed
from serried.plan import Environment

FIND_MODULE = """\
for init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \\
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $init ]] && source "$init"
done
"""
"""`module` is a shell function, which a shell that is not a login shell may lack."""

LOAD = """\
try_module() { # version 3 exits with status 0 in any case
  if ! module "$@" 2>"$output" || grep -q ':ERROR:' "$output"; then unable "'module $*' failed"; fi
  cat "$output" >&2
  : >"$output"
}
"""

MODULE_VERBS = ("use", "unload")
"""Entries of `environment.modules` that begin with one of these and a blank load no module."""

VENV = """\
export VIRTUAL_ENV={prefix}
PATH=$VIRTUAL_ENV/bin:$PATH
unset PYTHONHOME CONDA_PREFIX CONDA_DEFAULT_ENV
[[ -x $VIRTUAL_ENV/bin/python ]] || unable "no Python in $VIRTUAL_ENV/bin"
"""

CONDA = """\
export CONDA_PREFIX={prefix} CONDA_DEFAULT_ENV={name} CONDA_SHLVL=1 PYTHONNOUSERSITE=1
PATH=$CONDA_PREFIX/bin:$PATH
unset PYTHONHOME VIRTUAL_ENV
[[ -x $CONDA_PREFIX/bin/python ]] || unable "no Python in $CONDA_PREFIX/bin"
for hook in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
  # shellcheck source=/dev/null
  [[ -r $hook ]] && source "$hook"
done
"""
"""As `conda activate` does, without conda. ~/.local is left out, because Python would search it first."""

UNABLE = 70
"""Exit status of a script whose environment cannot be made active."""
PREAMBLE = """\
output=$(mktemp 2>/dev/null || mktemp -p /tmp)
unable() {
  echo "$1:" >&2
  tail -n 9 "$output" >&2
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
set -e
{{ :
{lines}
}} >"$serried_log" 2>&1
set +e
trap 'status=$?; serried_left; exit $status' EXIT
({words})"""
"""Keeps the output of `setup` apart from that of the words, and ends the background processes of `setup` with them."""
SECONDS = 600
"""`import torch` may take minutes on a slow file system."""
LAST_LINES = 12


def lines(environment: Environment) -> str:
    """Lines that make `environment` active; empty if everything is inherited."""
    modules = [["purge"]] if environment.module_purge else []
    modules += map(_module_words, environment.modules)
    parts = []
    if modules:
        parts += [FIND_MODULE, LOAD, *(f"try_module {shlex.join(words)}\n" for words in modules)]
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
    """The same for a script of our own: with `unable`, which exits with status 70."""
    activating = lines(environment)
    return f'{PREAMBLE}{activating}rm -f "$output"\n' if activating else ""


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
