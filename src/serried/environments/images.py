"""Images that Serried makes: from what, by which command, and where they are kept.

Each is kept under a name that its recipe's hash is a part of. So what it is made from may change at any time: a job
that is queued or running keeps its image, and the next submission asks for another.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from serried.config.container_kinds import is_reference
from serried.contract.slug import slug
from serried.errors import UsageError
from serried.plan import Container, Plan

DEFINITION = ".def"
PACKAGES = "requirements.txt"


@dataclass(frozen=True)
class Recipe:
    source: str
    """What it is made from, for people."""
    name: str
    """What the image is called."""
    text: str = ""
    """The definition, where there is one."""
    target: str = ""
    """What `apptainer build` is given instead, where there is none."""
    folder: Path | None = None
    """Where the definition's relative paths begin; None is a folder of its own."""
    requirements: Path | None = None
    inputs: tuple[str, ...] = ()
    """Hashes of the files that go into it."""

    @property
    def key(self) -> str:
        said = json.dumps([self.text, self.target, self.inputs])
        return hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:12]


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
        return Recipe(f"`{container.image}`", _name(container.image), target=container.image)
    return None


def place(plan: Plan, made: Recipe) -> Path:
    """Where the image is, or will be: beside the run directories, where compute nodes can read it."""
    return Path(plan.site.root) / "images" / f"{slug(made.name)}-{made.key}.sif"


def _by_definition(path: Path) -> Recipe:
    text = _read(path)
    folder = path.parent
    inputs = tuple(_hash(folder / name) for name in _files(text) if (folder / name).exists())
    return Recipe(f"`{path.name}`", path.stem, text=text, folder=folder, inputs=inputs)


def _with_packages(image: str, requirements: Path) -> Recipe:
    packages = _read(requirements)
    if is_reference(image):
        bootstrap, _, begins = image.partition("://")
        inputs: tuple[str, ...] = (packages,)
    elif Path(image).exists():
        bootstrap, begins = "localimage", image
        state = Path(image).stat()
        inputs = (packages, str(state.st_size), str(state.st_mtime_ns))
    else:
        raise UsageError(f"the image `{image}`, on top of which packages are to be installed, is not there")
    if begins != begins.strip() or not begins.isprintable():
        raise UsageError(f"no definition can name the image {begins!r}")
    text = (
        f"Bootstrap: {bootstrap}\nFrom: {begins}\n\n"
        f"%files\n    {PACKAGES} /opt/serried/{PACKAGES}\n\n"
        f"%post\n    python3 -m pip install --no-cache-dir -r /opt/serried/{PACKAGES}\n"
    )
    source = f"`{image}` and `{requirements.name}`"
    return Recipe(source, _name(image), text=text, requirements=requirements, inputs=inputs)


def _files(definition: str) -> list[str]:
    """What the sections `%files` copy in: a change of those makes another image, too."""
    sections = re.findall(r"^%files[^\n]*\n(.*?)(?=^%|\Z)", definition, re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].split() for section in sections for line in section.splitlines()]
    return [words[0].strip("\"'") for words in lines if words]


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
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
