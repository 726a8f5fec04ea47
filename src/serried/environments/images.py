"""Images that Serried makes: from what, by which command, and where they are kept.

Each is kept under a name that its recipe's hash is a part of. So what it is made from may change at any time: a job
that is queued or running keeps its image, and the next submission asks for another.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from serried.config.values import is_reference
from serried.environments import activation, check
from serried.environments.store import Store
from serried.errors import UsageError, reason
from serried.plan import Container, Environment
from serried.protocol.slug import slug

FOLDER = Path(".serried") / "images"
FORMAT = 1
"""Part of every hash: raised when the same inputs are to make another image."""
DEFINITION = ".def"
PACKAGES = "requirements.txt"

SCRIPT = Template("""\
#!/bin/bash
# Makes the image in $prefix from $source. Written by Serried.
prefix=$quoted
${activation}set -e
mkdir -p -- "$$prefix"
${inputs}cd -- $folder
$build "$$prefix"/.$file $target
mv -- "$$prefix"/.$file "$$prefix"/$file
""")


@dataclass(frozen=True)
class Recipe:
    source: str
    """What it is made from, for people."""
    called: str
    """What the image is called."""
    definition: str = ""
    """Its text, where there is one."""
    target: str = ""
    """What the runtime is given instead, where there is none."""
    folder: Path | None = None
    """Where the definition's relative paths begin; None is a folder of its own."""
    requirements: Path | None = None
    inputs: tuple[str, ...] = ()
    """Of the files that go into it: what they hold, or a hash."""
    environment: Environment = field(default_factory=Environment)
    """What is active while it is built: modules may bring the runtime."""
    program: str = "apptainer"
    """Of the runtime that makes it."""
    options: tuple[str, ...] = ()
    """More words for the runtime. Not part of the name: they say how, and not what."""

    @property
    def name(self) -> str:
        said = json.dumps([FORMAT, self.definition, self.target, self.inputs])
        return f"{slug(self.called)}-{hashlib.sha256(said.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"

    @property
    def doing(self) -> str:
        return f"building {self.name} from {self.source}"

    @property
    def file(self) -> str:
        return f"{slug(self.called)}.sif"

    def store(self, root: Path) -> Store:
        """Beside the run directories, where there is room, and compute nodes can read."""
        return Store(root, self.name, self.file, FOLDER)

    def image(self, root: Path) -> Path | None:
        """The image, if it is whole."""
        folder = self.store(root).finished()
        return folder and folder / self.file

    def script(self, prefix: Path) -> str:
        """The script that makes it in `prefix`."""
        lines = activation.lines(self.environment)
        return SCRIPT.substitute(
            prefix=" ".join(str(prefix).split()),
            source=" ".join(self.source.split()),
            quoted=shlex.quote(str(prefix)),
            activation=f'{check.PREAMBLE}{lines}rm -f "$said"\n' if lines else "",
            inputs=self._inputs(),
            folder=shlex.quote(str(self.folder)) if self.folder else '"$prefix"',
            build=shlex.join([self.program, "build", *self.options]),
            target='"$prefix/image.def"' if self.definition else shlex.quote(self.target),
            file=shlex.quote(self.file),
        )

    def _inputs(self) -> str:
        made = f'printf %s {shlex.quote(self.definition)} >"$prefix/image.def"\n' if self.definition else ""
        copied = f'cp -- {shlex.quote(str(self.requirements))} "$prefix/{PACKAGES}"\n' if self.requirements else ""
        return made + copied


def recipe(container: Container) -> Recipe | None:
    """How the container's image comes about; None where it is there already. Raises UsageError."""
    is_definition = container.image.endswith(DEFINITION)
    if is_definition and container.requirements:
        raise UsageError(
            "`container.requirements` are installed on top of an image, and `container.image` is a definition",
            hint="install them in its `%post`, or name the image that it begins with",
        )
    if is_definition:
        return _by_definition(Path(container.image))
    if container.requirements:
        return _with_packages(container.image, Path(container.requirements))
    if is_reference(container.image):
        return Recipe(container.image, _name(container.image), target=container.image)
    return None


def _by_definition(path: Path) -> Recipe:
    text = _read(path)
    folder = path.parent
    copied = tuple(_hash(path) for name in _files(text) for path in _paths(folder, name))
    bases = [folder / name for name in re.findall(r"^From:\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)]
    begins = [word for base in bases if "localimage" in text.lower() and base.exists() for word in _state(base)]
    return Recipe(path.name, path.stem, definition=text, folder=folder, inputs=(*copied, *begins))


def _with_packages(image: str, requirements: Path) -> Recipe:
    packages = _read(requirements)
    if is_reference(image):
        bootstrap, _, begins = image.partition("://")
        inputs: tuple[str, ...] = (packages,)
    elif Path(image).exists():
        bootstrap, begins = "localimage", image
        inputs = (packages, *_state(Path(image)))
    else:
        raise UsageError(f"the image `{image}`, on top of which packages are to be installed, is not there")
    if begins != begins.strip() or not begins.isprintable():
        raise UsageError(f"no definition can name the image {begins!r}")
    text = (
        f"Bootstrap: {bootstrap}\nFrom: {begins}\n\n"
        f"%files\n    {PACKAGES} /opt/serried/{PACKAGES}\n\n"
        "%post\n    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore\n"
        f"    python3 -m pip install --no-cache-dir -r /opt/serried/{PACKAGES}\n"
    )
    source = f"{image} and {requirements.name}"
    return Recipe(source, _name(image), definition=text, requirements=requirements, inputs=inputs)


def _files(definition: str) -> list[str]:
    """What the sections `%files` copy in from here: a change of those makes another image, too."""
    sections = re.findall(r"^%files(?!\s+from\b)[^\n]*\n(.*?)(?=^%|\Z)", definition, re.MULTILINE | re.DOTALL)
    lines = [_words(line) for section in sections for line in section.splitlines()]
    return [words[0] for words in lines if words]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _paths(folder: Path, name: str) -> list[Path]:
    """What a name in `%files` stands for, which may be a pattern."""
    if (folder / name).exists():
        return [folder / name]
    return [Path(path) for path in sorted(glob.glob(str(Path(glob.escape(str(folder)), name))))]  # noqa: PTH207


def _state(image: Path) -> tuple[str, str]:
    """What tells of another image in the same place: hashing gigabytes takes too long."""
    state = image.stat()
    return str(state.st_size), str(state.st_mtime_ns)


def _hash(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            total.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with file.open("rb") as opened:
                while part := opened.read(1 << 20):
                    total.update(part)
    return total.hexdigest()


def _name(image: str) -> str:
    """`pytorch-2.4.0` of `docker://docker.io/pytorch/pytorch:2.4.0`."""
    return Path(image.partition("://")[2] or image).name.removesuffix(".sif").replace(":", "-")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {reason(error)}") from error
