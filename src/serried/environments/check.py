"""Something run in an environment, here and now: `check` before a run is submitted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried import shell
from serried.environments import activation
from serried.errors import EnvironmentFailed
from serried.plan import Environment

UNABLE = 70
PREAMBLE = """\
said=$(mktemp 2>/dev/null || mktemp -p /tmp)
unable() {
  echo "$1:" >&2
  tail -n 9 "$said" >&2
  exit 70
}
"""
SETUP = """\
{find}serried_said=$(mktemp 2>/dev/null || mktemp -p /tmp)
serried_left() {{
  cat "$serried_said" >&2
  rm -f "$serried_said"
  kill $(jobs -p) 2>/dev/null || true
}}
trap 'serried_left; echo "a line of setup ended it" >&2; exit 70' EXIT
set -e
{{ :
{lines}
}} >"$serried_said" 2>&1
set +e
trap 'status=$?; serried_left; exit $status' EXIT
({words})"""
"""What it prints is not what is asked for, and what it starts in the background must neither be waited for nor stay."""
SECONDS = 600
"""`import torch` may take minutes where a file system is slow, and not more."""
LAST_LINES = 12


def in_environment(environment: Environment, words: str) -> list[str]:
    """The argv that runs `words` of bash where `environment` is active; `setup` included, as on a node."""
    lines = activation.lines(environment)
    setup = environment.setup
    if setup:
        words = SETUP.format(find=activation.finder(setup), lines=setup, words=words)
    return ["/bin/bash", "-c", f'{PREAMBLE}{lines}rm -f "$said"\n{words}']


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
    """What `python` is there: `python` (its version), `prefix` and `torch` (None without). Raises EnvironmentFailed."""
    said = _try(environment, ABOUT, variables, workdir, container)
    return dict(json.loads(said.splitlines()[-1]))


def check(
    environment: Environment, variables: Mapping[str, str], workdir: Path, container: Sequence[str] | None = None
) -> None:
    """Make it active and run what `check` says with the job's `variables`; after the words that enter a `container`.

    Raises EnvironmentFailed with its last lines.
    """
    code = environment.check
    if code == "" or (code is None and not activation.lines(environment)):
        return
    tried = environment if code else environment._replace(setup="")
    _try(tried, code or "", variables, workdir, container)


def _try(
    environment: Environment,
    code: str,
    variables: Mapping[str, str],
    workdir: Path,
    container: Sequence[str] | None,
) -> str:
    """What `code` prints there."""
    argv = [*in_environment(environment, 'exec "$@"'), "bash", *_program(environment, code, container)]
    done = shell.run(argv, env=variables, cwd=workdir, timeout=SECONDS)
    if done.status == 0:
        return done.stdout
    place = where(environment) if container is None else "the container"
    said = (done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:]
    raise EnvironmentFailed(
        f"the check `{code.replace(chr(10), '; ')}` failed in {place}, status {done.status}"
        if code and code == environment.check
        else f"{place} cannot be used here, status {done.status}",
        details="\n".join(said),
        hint="nothing was submitted; `--set environment.check=false` leaves the check out",
    )


def _program(environment: Environment, code: str, container: Sequence[str] | None) -> list[str]:
    """Without code it is enough that all could be loaded: not every program is Python."""
    if container is not None:
        return [*container, "python3", "-c", code] if code else ["true"]
    if code or environment.venv or environment.conda:
        return ["/bin/bash", "-c", 'exec "$(type -P python || echo python3)" -c "$1"', "bash", code]
    return ["true"]


def where(environment: Environment) -> str:
    """The environment in words."""
    prefix = environment.venv or environment.conda
    if prefix:
        return f"`{prefix}`"
    return f"the modules {' '.join(environment.modules)}" if environment.modules else "the active environment"
