"""The container of a plan: its image, the runtime that runs it, and the images that Serried builds.

A built image is kept under a hash of its inputs. Its source may change at any time: a queued or running job keeps its
image, and the next submission needs another.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serried import schedulers
from serried.base.errors import UsageError, reason
from serried.config.values import APPTAINER, CHARLIECLOUD, PYXIS, RUNTIMES, is_reference
from serried.schema import binds
from serried.schema.layout import slug
from serried.schema.names import RUNSCRIPT
from serried.schema.plan import Container, Plan
from serried.submission import builds, environments
from serried.submission.builds import Recipe

SEARCHED = tuple(name for name in RUNTIMES if name != PYXIS)
INSTALL = "https://apptainer.org, or on Debian `apt-get install charliecloud-runtime`"
FORMAT = 1
"""Part of every hash: raised when the same inputs have to give another image."""
DEFINITION = ".def"
PACKAGES = "requirements.txt"
BUILD = '"${build[@]}" "$image"'
"""The command that builds an image, of which the words before the image come later."""


def settle(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """`plan` with its image and its runtime located. Raises UsageError if it cannot run."""
    container = plan.container
    if container is None:
        return plan
    _check_environment(plan)
    container = container._replace(runtime=container.runtime or _runtime(plan, environ))
    if container.runtime == PYXIS:
        return plan._replace(container=_for_pyxis(container, plan))
    recipe = image_recipe(container, Path(plan.site.root))
    if recipe is not None:  # to build it takes minutes, and compute nodes may not reach a registry
        folder = recipe.finished()
        if folder is None:
            message = f"the image from `{recipe.source}` is not built, or its source has changed since"
            raise UsageError(message, hint=f"`serried env build {plan.experiment}`, then submit again")
        container = container._replace(image=str(folder / recipe.product), made_from=recipe.source)
    elif not Path(container.image).exists():
        hint = "a relative `container.image` begins at the project's folder"
        raise UsageError(f"the image `{container.image}` does not exist", hint=hint)
    if dialect(container) == CHARLIECLOUD:
        _check_charliecloud(container, plan)
    can_copy = bool(plan.site.local_disk) and Path(container.image).is_file()
    if container.local and not can_copy:
        why = f"`{container.image}` is a folder" if plan.site.local_disk else f"`{plan.site.name}` has no `local_disk`"
        hint = "leave it out: then Serried copies images wherever that is possible"
        raise UsageError(f"`container.local` copies the image to each node's own disk, but {why}", hint=hint)
    return plan._replace(container=container._replace(local=can_copy and container.local is not False))


def _check_environment(plan: Plan) -> None:
    if plan.environment.venv or plan.environment.conda or plan.environment.build:
        message = "ranks run in a container, but `environment` names a virtual or conda environment of the host"
        hint = '`container.requirements` installs packages into an image; `container.image = "off"` runs in none'
        raise UsageError(message, hint=hint)


def image_to_build(plan: Plan, container: Container, environ: Mapping[str, str], options: tuple[str, ...]) -> Recipe:
    """How to build the image of a plan; `options` are more words for the runtime.

    Raises UsageError if Serried does not build it.
    """
    _check_environment(plan)
    recipe = image_recipe(container, Path(plan.site.root))
    if recipe is None:
        hint = "`container.image` may be a definition (`train.def`) or an address (`docker://…`)"
        raise UsageError(f"`{plan.experiment}` has no image to build: `{container.image}` is used as it is", hint=hint)
    runtime = container.runtime or _runtime(plan, environ)
    if RUNTIMES[Path(runtime).name] != APPTAINER:
        hint = "for Charliecloud `ch-image build`, then `ch-convert`; for pyxis `enroot import`"
        raise UsageError(f"Serried does not build images for `{runtime}`", hint=hint)
    activating = environments.whole_lines(plan.environment)
    build = f"build=({shlex.join([runtime, 'build', *options])})\n"
    return dataclasses.replace(recipe, commands=f"{activating}{build}{recipe.commands}")


def check_runscript(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """Raises UsageError if `%runscript` has to run and the image cannot have one."""
    is_wanted = any(tuple(words[:1]) == (RUNSCRIPT,) for words in (plan.command, *each))
    if is_wanted and (plan.container is None or dialect(plan.container) != APPTAINER):
        what = f"`{plan.container.runtime}` does not support it" if plan.container else "this run has no container"
        hint = "name the program: `command`, or words after `--`"
        raise UsageError(f"`{RUNSCRIPT}` runs the script of an Apptainer image, but {what}", hint=hint)


def check(container: Container) -> None:
    """Raises UsageError if the image of a plan from an earlier submit has been removed."""
    if container.runtime != PYXIS and not Path(container.image).exists():
        raise UsageError(f"the image `{container.image}` does not exist any more")


def dialect(container: Container) -> str:
    return RUNTIMES[Path(container.runtime).name]


def entering(container: Container) -> list[str]:
    if dialect(container) == CHARLIECLOUD:
        return [container.runtime, *container.options, container.image, "--"]
    here = [bind for bind in map(binds.parse, container.binds) if not binds.is_local(bind.source)]
    mounts = [word for bind in here for word in binds.for_apptainer(bind)]
    writable = ["--writable-tmpfs"] if container.writable else []
    return [container.runtime, "--quiet", "exec", "--no-home", *writable, *mounts, *container.options, container.image]


def _runtime(plan: Plan, environ: Mapping[str, str]) -> str:
    """The first that is here. Modules may bring one that only jobs see: then the best known is assumed."""
    path = environ.get("PATH", os.defpath)
    here = next((name for name in SEARCHED if shutil.which(name, path=path)), None)
    if here:
        return here
    if plan.environment.modules or plan.environment.setup:
        return SEARCHED[0]
    names = ", ".join(f"`{name}`" for name in SEARCHED)
    raise UsageError(
        f"no container runtime on PATH: none of {names}",
        hint="if compute nodes have one, name it: `container.runtime`, or the module that brings it: "
        f"`environment.modules`; else {INSTALL}",
    )


def _check_charliecloud(container: Container, plan: Plan) -> None:
    if Path(container.image).suffix == ".sif":
        message = f"`{container.runtime}` cannot run `{container.image}`, which is Apptainer's kind of image"
        hint = 'give it a folder or a `.sqfs` (`ch-convert`), or `container.runtime = "apptainer"`'
        raise UsageError(message, hint=hint)
    if container.writable:
        message = f"`{container.runtime}` has no option like `--writable-tmpfs`, which `container.writable` needs"
        hint = 'bind a folder where ranks write: `container.binds = ["$SLURM_TMPDIR/out:/out"]`'
        raise UsageError(message, hint=hint)
    _check_paths(container, plan, ":")
    fixed = next((bind.source for bind in map(binds.parse, container.binds) if bind.is_read_only), None)
    if fixed:
        raise UsageError(f"`{container.runtime}` cannot mount `{fixed}` read-only", hint="leave out `:ro`")


def _check_paths(container: Container, plan: Plan, refused: str) -> None:
    """Raises UsageError if the runtime cannot mount one of the paths."""
    mounts = [binds.parse(text) for text in container.binds]
    paths = [plan.source.directory, plan.directory]
    paths += [path for bind in mounts for path in (bind.source, bind.destination)]
    for path in paths:
        wrong = next((character for character in refused if character in path), None)
        if wrong:
            raise UsageError(f"`{container.runtime}` cannot mount a path with a `{wrong}` in it: `{path}`")


def _for_pyxis(container: Container, plan: Plan) -> Container:
    owner = schedulers.owner(container.runtime)
    if owner and owner != schedulers.traits(plan.site.scheduler):
        hint = '`container.runtime = "apptainer"`'
        raise UsageError(f"`{container.runtime}` is part of {owner.title}, which this cluster does not use", hint=hint)
    if container.contained or container.local or container.requirements:
        raise UsageError("`pyxis` does not support `contained`, `local` or `requirements`")
    _check_paths(container, plan, ":,")
    if any(binds.LOCAL in text for text in container.binds):
        raise UsageError(f"`container.binds` cannot use `{binds.LOCAL}` with `pyxis`: it is set only after the mounts")
    if plan.environment.check:
        raise UsageError("`environment.check` cannot run here: pyxis containers exist only inside jobs")
    return container._replace(local=False)


def image_recipe(container: Container, root: Path) -> Recipe | None:
    """How to build the image, without the command; None if the image needs no build. Raises UsageError.

    Images lie below the `root` of run directories: there is space, and compute nodes can read them.
    """
    image = container.image
    if image.endswith(DEFINITION):
        if container.requirements:
            message = "`container.requirements` are installed on top of an image, but `container.image` is a definition"
            raise UsageError(message, hint="install them in its `%post`, or name its base image")
        return _by_definition(Path(image), root)
    if container.requirements:
        return _with_packages(image, Path(container.requirements), root)
    if is_reference(image):
        key = builds.digest(FORMAT, "", image, ())
        return _recipe(root, _title(image), key, image, f'cd -- "$prefix"\n{BUILD} {shlex.quote(image)}\n')
    return None


def _recipe(root: Path, title: str, key: str, source: str, commands: str) -> Recipe:
    """`commands` build the image `$image`."""
    name, file = f"{slug(title)}-{key}", f"{slug(title)}.sif"
    return Recipe(
        folder=root / builds.IMAGES,
        name=name,
        product=file,
        source=source,
        step=f"building {name} from {source}",
        commands=(f'set -e\nmkdir -p -- "$prefix"\nimage=$prefix/.{file}\n{commands}mv -- "$image" "$prefix"/{file}\n'),
    )


def _by_definition(path: Path, root: Path) -> Recipe:
    text = _read(path)
    folder = path.parent
    hashes = [_hash(copied) for copied in _copied_files(text, folder)]
    bases = [folder / name for name in re.findall(r"^From:\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)]
    states = [word for base in bases if "localimage" in text.lower() and base.exists() for word in _state(base)]
    key = builds.digest(FORMAT, text, "", [*hashes, *states])
    commands = f'{_write_definition(text)}cd -- {shlex.quote(str(folder))}\n{BUILD} "$prefix/image.def"\n'
    return _recipe(root, path.stem, key, path.name, commands)


def _with_packages(image: str, requirements: Path, root: Path) -> Recipe:
    packages = _read(requirements)
    if is_reference(image):
        bootstrap, _, base = image.partition("://")
        inputs: tuple[str, ...] = (packages,)
    elif Path(image).exists():
        bootstrap, base = "localimage", image
        inputs = (packages, *_state(Path(image)))
    else:
        raise UsageError(f"the image `{image}`, on which packages have to be installed, does not exist")
    if base != base.strip() or not base.isprintable():
        raise UsageError(f"no definition can name the image {base!r}")
    text = (
        f"Bootstrap: {bootstrap}\nFrom: {base}\n\n"
        f"%files\n    {PACKAGES} /opt/serried/{PACKAGES}\n\n"
        "%post\n    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore\n"
        f"    python3 -m pip install --no-cache-dir -r /opt/serried/{PACKAGES}\n"
    )
    copy = f'cp -- {shlex.quote(str(requirements))} "$prefix/{PACKAGES}"\n'
    commands = f'{_write_definition(text)}{copy}cd -- "$prefix"\n{BUILD} "$prefix/image.def"\n'
    key = builds.digest(FORMAT, text, "", inputs)
    return _recipe(root, _title(image), key, f"{image} and {requirements.name}", commands)


def _write_definition(text: str) -> str:
    return f'printf %s {shlex.quote(text)} >"$prefix/image.def"\n'


def _copied_files(definition: str, folder: Path) -> Iterator[Path]:
    """Paths that the sections `%files` copy from this machine: a change there needs another image, too."""
    sections = re.findall(r"^%files(?!\s+from\b)[^\n]*\n(.*?)(?=^%|\Z)", definition, re.MULTILINE | re.DOTALL)
    for line in "".join(sections).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        for name in words[:1]:  # a path, or a pattern
            pattern = str(Path(glob.escape(str(folder)), name))
            yield from [folder / name] if (folder / name).exists() else map(Path, sorted(glob.glob(pattern)))  # noqa: PTH207


def _state(image: Path) -> tuple[str, str]:
    """Size and time instead of a hash: hashing gigabytes takes too long."""
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


def _title(image: str) -> str:
    """`pytorch-2.4.0` of `docker://docker.io/pytorch/pytorch:2.4.0`."""
    return Path(image.partition("://")[2] or image).name.removesuffix(".sif").replace(":", "-")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {reason(error)}") from error
