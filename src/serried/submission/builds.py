"""Files built once and kept under a hash of their inputs: environments, images, prepared data.

Several processes, also on different login nodes, may need the same build. One of them builds it; the others wait. A
shared file system has no locks that can be relied on, so the builder claims a numbered folder:

FOLDER/
  NAME.json          the build is complete, and where it is; written last
  NAME-RANDOM/       the build; always a new folder, because a running job may use an older one
  NAME-RANDOM.sh     the script that builds it
  NAME-RANDOM.log    the output of the script
  NAME.claims/N/     the builder: the highest N, while `owner.json` in there changes

A builder that has died is recognised by its process, or from another machine by its silence. The next one claims N + 1.

Below is the recipe of an environment. containers.py has the recipes of images, data.py those of data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.base import shell
from serried.base.errors import EnvironmentFailed, MissingProgramError, SerriedError, UsageError, reason
from serried.base.files import make_directory, read_json, write_json
from serried.base.processes import Process, myself
from serried.schema.plan import Build, Environment
from serried.submission import environments

if TYPE_CHECKING:
    from serried.submission.deliver import Observe

ENVIRONMENTS, IMAGES, DATA = (Path(".serried") / name for name in ("environments", "images", "data"))
"""Below the project, except for images: these lie below the root of the run directories."""
CLAIMS = ".claims"
LOG, SCRIPT = ".log", ".sh"
LOOK_SECONDS = 0.5
BEAT_SECONDS = 5.0
SILENT_SECONDS = 120.0
"""A shared file system may show a beat a minute late."""
END_SECONDS = 2.0
"""Between TERM and KILL when a build is interrupted."""
AS_GROUP = 'trap "trap - TERM; kill 0" TERM; /bin/bash "$1" & wait $!'
"""Passes TERM on to all that the script has started. Otherwise an installation would run to its end."""
LAST_LINES = 12
SHORT_END, LONG_END = 1 << 13, 1 << 16
"""Bytes read from the end of a log, for its last line and for its last lines."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


Tick = Callable[[], None]
"""Called about once a second during a build."""

Builder = Callable[[Path, Path, Tick], str]
"""Runs a script with its output in a log. Returns why that failed; empty after a success."""


@dataclass(frozen=True)
class Recipe:
    folder: Path
    name: str
    """Has a hash of all inputs as its last part."""
    product: str
    """A path in the folder of the build. It exists once the build is complete."""
    source: str
    """A file, an address or a command; users see it."""
    step: str
    """`building NAME from FILE`."""
    commands: str
    """Lines of bash that build it in the folder `$prefix`."""
    failure: type[SerriedError] = EnvironmentFailed

    @property
    def expected(self) -> Path:
        """The folder of a future build, without the random end of its name."""
        return self.folder / self.name

    @property
    def mark(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def _claims(self) -> Path:
        return self.folder / f"{self.name}{CLAIMS}"

    def finished(self) -> Path | None:
        facts = read_json(self.mark) or {}
        prefix = self.folder / str(facts.get("folder", ""))
        return prefix if facts and self.is_complete(prefix) else None

    def forget(self) -> None:
        self.mark.unlink(missing_ok=True)

    def script(self, prefix: Path) -> str:
        title = " ".join(self.step.split())
        return f"#!/bin/bash\n# Written by Serried: {title}\nprefix={shlex.quote(str(prefix))}\n{self.commands}"

    def is_complete(self, prefix: Path) -> bool:
        return (prefix / self.product).exists()

    def claim(self) -> Claim | None:
        """The right to build it; None while another builder has it. Raises OSError."""
        make_directory(self.folder)
        ignore = self.folder.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        make_directory(self._claims)
        owner = self.owner()
        if owner["number"]:
            # Another machine's processes cannot be seen, so its builder may be at work.
            is_here = owner.get("host") == os.uname().nodename
            if not is_here or Process(int(owner["pid"]), str(owner["started"])).is_alive:
                return None
        return self.succeed(owner)

    def owner(self) -> dict[str, Any]:
        """The number of the newest claim, and what is known about its builder."""
        number = max(self.claimed(), default=0)
        return {"number": number, **(read_json(self._claims / str(number) / "owner.json") or {})}

    def succeed(self, owner: Mapping[str, Any]) -> Claim | None:
        """The right to build it in place of `owner`, which has died; None if another process was faster."""
        path = self._claims / str(owner["number"] + 1)
        try:
            path.mkdir()
        except (FileExistsError, FileNotFoundError):  # claimed, or just tidied up, by another process
            return None
        claim = Claim(self, path, self.folder / f"{self.name}-{os.urandom(2).hex()}")
        claim.beat()
        return claim

    def claimed(self) -> list[int]:
        try:
            return [int(path.name) for path in self._claims.iterdir() if path.name.isdigit()]
        except OSError:
            return []


@dataclass(repr=False, eq=False)
class Claim:
    """The right to build a recipe in the folder `prefix`, for as long as it beats."""

    recipe: Recipe
    path: Path
    prefix: Path
    _count: int = 0
    _next: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return self.prefix.with_name(self.prefix.name + LOG)

    @property
    def is_newest(self) -> bool:
        return max(self.recipe.claimed(), default=0) == int(self.path.name)

    def beat(self) -> None:
        """Call this often; it writes every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BEAT_SECONDS
        self._count += 1
        owner = {"host": os.uname().nodename, **myself()._asdict()}
        with contextlib.suppress(OSError):
            write_json(self.path / "owner.json", {**owner, "beat": self._count, "log": self.log.name})

    def publish(self) -> None:
        """Mark the build as complete, unless another builder has taken over."""
        if self.is_newest:
            facts = {"folder": self.prefix.name, "source": self.recipe.source, "built": int(time.time())}
            write_json(self.recipe.mark, facts)

    def tidy(self) -> None:
        """Remove incomplete builds, but not that of an active builder, and then the claims."""
        if not self.is_newest:
            shutil.rmtree(self.prefix, ignore_errors=True)
            return
        folder, complete = self.recipe.folder, self.recipe.finished()
        kept = {self.prefix.name, complete.name if complete else ""}
        for path in folder.glob(f"{self.recipe.name}-*"):
            if path.is_dir() and path != complete:
                shutil.rmtree(path, ignore_errors=True)
            elif path.stem not in kept:
                path.unlink(missing_ok=True)
        claims = self.path.parent
        for number in sorted(self.recipe.claimed()):
            if number <= int(self.path.name):
                shutil.rmtree(claims / str(number), ignore_errors=True)
        with contextlib.suppress(OSError):
            claims.rmdir()


def provide(recipe: Recipe, builder: Builder, observe: Observe) -> Path:
    """The folder of the build; `builder` builds it first if needed. Waits while another process builds it.

    Raises `recipe.failure` with the last lines of the output.
    """
    silent_owner: Mapping[str, Any] = {}
    since = time.monotonic()
    while True:
        prefix = recipe.finished()
        if prefix:
            return prefix
        with _plain_errors(recipe.folder):
            claim = recipe.claim()
            owner = recipe.owner()
            if claim is None and owner != silent_owner:
                silent_owner, since = owner, time.monotonic()
            elif claim is None and time.monotonic() - since > SILENT_SECONDS:
                claim = recipe.succeed(owner)
        if claim:
            _build(claim, builder, observe)
        else:
            observe(f"waiting for {owner.get('host', 'another process')}, which is {recipe.step}")
            time.sleep(LOOK_SECONDS)


def _build(claim: Claim, builder: Builder, observe: Observe) -> None:
    recipe, log = claim.recipe, claim.log
    script = log.with_suffix(SCRIPT)

    def tick() -> None:
        claim.beat()
        observe(recipe.step, next(reversed(_lines(log, SHORT_END)), ""))

    try:
        if recipe.finished():  # by a process that was faster
            return
        with _plain_errors(recipe.folder):
            script.write_text(recipe.script(claim.prefix), encoding="utf-8")
            tick()
        problem = builder(script, log, tick)
        if not problem and not recipe.is_complete(claim.prefix):
            problem = f"`{script}` has not created `{recipe.product}`"
        if problem:
            last = "\n".join(_lines(log, LONG_END)[-LAST_LINES:])
            raise recipe.failure(f"{recipe.step} failed: {problem}", details=last, hint=f"the complete output: {log}")
        claim.publish()
    finally:
        claim.tidy()


def here(variables: Mapping[str, str]) -> Builder:
    """Builds on this machine with `variables` as the environment. An interruption ends all that the script started."""

    def build(script: Path, log: Path, tick: Tick) -> str:
        child = shell.start(
            ["/bin/bash", "-c", AS_GROUP, "bash", str(script)],
            log=log,
            env={**variables, "PYTHONUNBUFFERED": "1"},
            signal_on_our_death=signal.SIGTERM,
        )
        try:
            while child.poll() is None:
                tick()
                time.sleep(LOOK_SECONDS / 5)
        finally:
            if child.poll() is None:
                # TERM for the whole group, and KILL for processes that ignore TERM.
                deadline = time.monotonic() + END_SECONDS
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()
                with contextlib.suppress(ProcessLookupError):  # all have ended
                    while time.monotonic() < deadline:
                        os.killpg(child.pid, 0)
                        time.sleep(LOOK_SECONDS / 10)
                    os.killpg(child.pid, signal.SIGKILL)
        return f"exit status {child.returncode}" if child.returncode else ""

    return build


def _lines(log: Path, size: int) -> list[str]:
    """The lines with text in the last `size` bytes; of a line that was overwritten, its last state."""
    text = ""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        text = file.read().decode("utf-8", "replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n"))
    return [line for line in lines if line.strip()]


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "the folder must be writable here and visible on compute nodes"
        raise UsageError(f"cannot build in `{folder}`: {reason(error)}", hint=hint) from error


def digest(*parts: object) -> str:
    """Twelve digits that change with any of `parts`."""
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def built(folder: Path) -> list[tuple[Path, str]]:
    """The complete builds in a folder, and the source of each."""
    facts = [read_json(path) or {} for path in sorted(folder.glob("*.json"))]
    return [(folder / str(fact["folder"]), str(fact.get("source"))) for fact in facts if "folder" in fact]


def abandoned(folder: Path, complete: Iterable[Path]) -> list[Path]:
    """What failed builds have left: folders not among `complete` and files of no build. Not of an active builder."""
    kept = {prefix.name for prefix in complete}
    claimed = [path.name.removesuffix(CLAIMS) for path in folder.glob(f"*{CLAIMS}")]
    left = []
    for path in sorted(folder.glob("*")):
        is_folder = path.is_dir()
        name = path.name if is_folder else path.stem
        is_left = not path.is_symlink() and not name.endswith(CLAIMS) if is_folder else path.suffix in (LOG, SCRIPT)
        if is_left and name not in kept and name.rpartition("-")[0] not in claimed:
            left.append(path)
    return left


def remove(prefix: Path) -> None:
    """Remove a build, beginning with the mark of its completeness. Raises OSError."""
    complete = prefix.parent / f"{prefix.name.rpartition('-')[0]}.json"
    if (read_json(complete) or {}).get("folder") == prefix.name:
        complete.unlink()
    shutil.rmtree(prefix)
    for suffix in (LOG, SCRIPT):
        prefix.with_name(prefix.name + suffix).unlink(missing_ok=True)


ENVIRONMENT_FORMAT = 1
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


def environment_recipe(environment: Environment, project: Path, environ: Mapping[str, str]) -> Recipe | None:
    """How to build the environment of a run; None if Serried does not build it.

    `environ` holds the variables that the run inherits. Raises UsageError if the file or the program is missing.
    """
    build = environment.build
    if build is None:
        return None
    source = source_of(build, project)
    install = install_commands(build, source)
    hashes = {path: hashlib.sha256(_bytes(path)).hexdigest() for path in sorted(set(inputs(source)))}
    bare = environment._replace(build=None, venv=None, conda=None, setup="", check=None)
    version = ""
    if build.kind == "conda":
        conda = environments.conda_program(environ)
        if conda is None and not bare.modules:
            message = "no `conda`, `mamba` or `micromamba` on PATH or in your home directory"
            hint = "https://conda-forge.org/download, or the module that brings it: `environment.modules`"
            raise MissingProgramError(message, hint=hint)
        create = f"conda={shlex.quote(conda or 'conda')}\n"  # from one of the modules
    else:
        python, version = _python(build, bare, environ)
        if source.name == "uv.lock" and shutil.which("uv", path=environ.get("PATH")) is None:
            hint = '`pip install uv`, or build from another file: `venv = "requirements.txt"`'
            raise MissingProgramError(f"`{source}` needs `uv`, which is not on PATH", hint=hint)
        create = f'{shlex.quote(python)} -m venv --clear "$prefix"\n'
    paths = [os.path.relpath(path, project) for path in hashes]
    key = digest(
        ENVIRONMENT_FORMAT, build.kind, build.torch, environment.modules, version, paths, list(hashes.values())
    )
    name = f"{build.kind}-{key}"
    return Recipe(
        folder=project / ENVIRONMENTS,
        name=name,
        product="bin/python",
        source=str(source),
        step=f"building {name} from {source.name}",
        commands=f"{environments.whole_lines(bare)}set -e\ncd -- {shlex.quote(str(source.parent))}\n{create}{install}",
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
        message = f"cannot build an environment: `{project}` has no {', '.join(f'`{name}`' for name in names)}"
        raise UsageError(message, hint=f'write one, or name the file: `{build.kind} = "cluster/{names[-2]}"`')
    return source


def install_commands(build: Build, path: Path) -> str:
    """Lines of bash that install the packages listed in `path`. They run in the folder of `path`. Raises UsageError."""
    if build.kind == "conda":
        if build.torch:
            hint = f"name the build of PyTorch in `{path.name}`"
            raise UsageError("`environment.torch` works only with pip, not with conda", hint=hint)
        return (
            "[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option\n"
            f'"$conda" env create "$@" --quiet --prefix "$prefix" --file {shlex.quote(path.name)}\n'
        )
    if path.name == "uv.lock":
        if build.torch:
            hint = "name the index in `[tool.uv.sources]` of `pyproject.toml` and lock again"
            raise UsageError("`environment.torch` cannot change the packages in `uv.lock`", hint=hint)
        return 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    if path.name == "Pipfile":
        packages = "--requirement /dev/stdin <<'REQUIREMENTS'"
    elif path.suffix == ".txt":
        packages = f"--requirement {shlex.quote(path.name)}"
    elif path.name == "pyproject.toml" and {"project", "build-system"} & _toml(path).keys():
        packages = "--editable ."
    else:
        hint = "use `uv.lock`, `Pipfile`, `requirements.txt` or another `.txt`, or `pyproject.toml` with `[project]`"
        raise UsageError(f"cannot build an environment from `{path}`", hint=hint)
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
    try:
        texts = _bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None
    for text in texts:
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
        argv = ["/bin/bash", "-c", environments.script(bare, words)]
        done = shell.run(argv, env=environ, timeout=environments.SECONDS)
        if done.status == 0:
            return candidate, done.stdout.strip()
        errors = errors or done.stderr.strip()
        if done.status == environments.UNABLE:
            break
    details = "\n".join(errors.splitlines()[-LAST_LINES:])
    if done.status == environments.UNABLE:
        message = f"cannot build the environment: {environments.describe(bare)} cannot be used here"
        hint = "`environment.modules` names them; `module avail` lists the modules of this machine"
        raise EnvironmentFailed(message, hint=hint, details=details)
    hint = "name another: `environment.python`; on Debian and Ubuntu `apt-get install python3-venv`"
    raise EnvironmentFailed(f"`{candidates[0]}` cannot create virtual environments", hint=hint, details=details)


def _toml(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(_bytes(path).decode())
    except ValueError as error:
        raise UsageError(f"`{path}` is not valid TOML: {error}") from None
    return document


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None
