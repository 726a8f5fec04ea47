"""The container of a plan: which image, and what runs it, looked for before anything is touched."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried import schedulers
from serried.config.values import APPTAINER, CHARLIECLOUD, PYXIS, RUNTIMES
from serried.environments import images
from serried.errors import UsageError
from serried.plan import Container, Plan
from serried.protocol import binds
from serried.protocol.names import RUNSCRIPT

SEARCHED = tuple(name for name in RUNTIMES if name != PYXIS)
INSTALL = "https://apptainer.org, or on Debian `apt-get install charliecloud-runtime`"


def settle(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """`plan` with its image and its runtime found. Raises UsageError where it cannot run."""
    container = plan.container
    if container is None:
        return plan
    if plan.environment.venv or plan.environment.conda or plan.environment.build:
        raise UsageError(
            "ranks run in a container, and `environment` asks for a virtual or conda environment of the host",
            hint='`container.requirements` installs packages into an image; `container.image = "off"` runs in none',
        )
    container = container._replace(runtime=container.runtime or _runtime(plan, environ))
    if container.runtime == PYXIS:
        return dataclasses.replace(plan, container=_for_pyxis(container, plan))
    container = _with_image(container, plan)
    _check(container, plan)
    return dataclasses.replace(plan, container=container._replace(local=_is_local(container, plan)))


def to_build(plan: Plan, environ: Mapping[str, str], options: tuple[str, ...]) -> images.Recipe:
    """How the image of a plan is made. Raises UsageError where Serried makes none."""
    container = plan.container
    found = images.recipe(container) if container else None
    if container is None or found is None:
        what = f"`{container.image}` is used as it is" if container else "its ranks run in no container"
        raise UsageError(
            f"there is no image to make for `{plan.experiment}`: {what}",
            hint="`container.image` may be a definition (`train.def`) or an address (`docker://…`)",
        )
    runtime = container.runtime or _runtime(plan, environ)
    if RUNTIMES[Path(runtime).name] != APPTAINER:
        raise UsageError(
            f"images for `{runtime}` are not made by Serried",
            hint="for Charliecloud `ch-image build`, then `ch-convert`; for pyxis `enroot import`",
        )
    bare = plan.environment._replace(setup="", check=None)
    return dataclasses.replace(found, program=runtime, options=options, environment=bare)


def check_runscript(plan: Plan, each: Sequence[Sequence[str]]) -> None:
    """Whether there is a script where one is to run. Raises UsageError."""
    is_asked = any(tuple(words[:1]) == (RUNSCRIPT,) for words in (plan.command, *each))
    if is_asked and (plan.container is None or dialect(plan.container) != APPTAINER):
        what = f"`{plan.container.runtime}`" if plan.container else "a run without a container"
        raise UsageError(
            f"`{RUNSCRIPT}` is what an image of Apptainer's runs by itself, and {what} knows none",
            hint="name the program: `command`, or words after `--`",
        )


def check(plan: Plan) -> None:
    """Whether the image of a plan that was settled before is still there. Raises UsageError."""
    container = plan.container
    if container and container.runtime != PYXIS and not Path(container.image).exists():
        raise UsageError(f"the image `{container.image}` is not there any more")


def dialect(container: Container) -> str:
    """How its runtime is told what to do."""
    return RUNTIMES[Path(container.runtime).name]


def entering(plan: Plan) -> list[str] | None:
    """The words that enter its container here, for a trial; None where there is none."""
    container = plan.container
    if container is None:
        return None
    if dialect(container) == CHARLIECLOUD:
        return [container.runtime, *container.options, container.image, "--"]
    here = [bind for bind in map(binds.parse, container.binds) if not binds.is_local(bind.source)]
    mounts = [word for bind in here for word in binds.for_apptainer(bind)]
    writable = ["--writable-tmpfs"] if container.writable else []
    return [container.runtime, "--quiet", "exec", "--no-home", *writable, *mounts, *container.options, container.image]


def _runtime(plan: Plan, environ: Mapping[str, str]) -> str:
    """The first that is here. Modules may bring one that only jobs see: then the best known is taken to be it."""
    path = environ.get("PATH", os.defpath)
    here = next((name for name in SEARCHED if shutil.which(name, path=path)), None)
    if here:
        return here
    if plan.environment.modules or plan.environment.setup:
        return SEARCHED[0]
    names = ", ".join(f"`{name}`" for name in SEARCHED)
    raise UsageError(
        f"nothing here runs containers: {names} are not on PATH",
        hint="if compute nodes have one, name it: `container.runtime`, or the module that brings it: "
        f"`environment.modules`; else {INSTALL}",
    )


def _with_image(container: Container, plan: Plan) -> Container:
    """What is to be made first must have been: that takes minutes, and compute nodes may see no registry."""
    recipe = images.recipe(container)
    if recipe is None:
        if Path(container.image).exists():
            return container
        raise UsageError(
            f"the image `{container.image}` is not there",
            hint="a relative `container.image` begins at the project's folder",
        )
    built = recipe.image(Path(plan.site.root))
    if built is None:
        raise UsageError(
            f"no image has been made from `{recipe.source}` yet, or that has changed since",
            hint=f"`serried image build {plan.experiment}`, then submit again",
        )
    return container._replace(image=str(built), made_from=recipe.source)


def _check(container: Container, plan: Plan) -> None:
    suffix = Path(container.image).suffix
    if dialect(container) == CHARLIECLOUD and suffix == ".sif":
        raise UsageError(
            f"`{container.runtime}` cannot run `{container.image}`, which is Apptainer's kind of image",
            hint='give it a folder or a `.sqfs` (`ch-convert`), or `container.runtime = "apptainer"`',
        )
    if dialect(container) == CHARLIECLOUD and container.writable:
        raise UsageError(
            f"`{container.runtime}` has nothing like `--writable-tmpfs`, which `container.writable` asks for",
            hint='bind a folder where ranks write: `container.binds = ["$SLURM_TMPDIR/out:/out"]`',
        )
    if dialect(container) == CHARLIECLOUD:
        _check_paths(container, plan, ":")
        fixed = next((bind.source for bind in map(binds.parse, container.binds) if bind.is_read_only), None)
        if fixed:
            raise UsageError(f"`{container.runtime}` cannot mount `{fixed}` read-only", hint="leave out `:ro`")


def _check_paths(container: Container, plan: Plan, refused: str) -> None:
    """Whether the runtime can be told of every path."""
    mounts = [binds.parse(text) for text in container.binds]
    for path in (
        plan.source.directory,
        plan.directory,
        *(it for bind in mounts for it in (bind.source, bind.destination)),
    ):
        wrong = next((character for character in refused if character in path), None)
        if wrong:
            raise UsageError(f"`{container.runtime}` cannot mount a path with a `{wrong}` in it: `{path}`")


def _is_local(container: Container, plan: Plan) -> bool:
    """A file is copied where there is a disk to copy it to."""
    can = bool(plan.site.local_disk) and Path(container.image).is_file()
    if container.local and not can:
        reason = (
            f"`{container.image}` is a folder" if plan.site.local_disk else f"`{plan.site.name}` has no `local_disk`"
        )
        raise UsageError(
            f"`container.local` wants the image copied to each node's own disk, and {reason}",
            hint="leave it out: then images are copied where they can be",
        )
    return can and container.local is not False


def _for_pyxis(container: Container, plan: Plan) -> Container:
    owner = schedulers.owner(container.runtime)
    if owner and owner != schedulers.traits(plan.site.scheduler):
        raise UsageError(
            f"`{container.runtime}` is a part of {owner.title}, and this cluster has none",
            hint='`container.runtime = "apptainer"`',
        )
    if container.contained or container.local or container.requirements:
        raise UsageError("`pyxis` knows no `contained`, `local` or `requirements`")
    _check_paths(container, plan, ":,")
    if any(binds.LOCAL in text for text in container.binds):
        raise UsageError(f"`pyxis` makes its mounts before `{binds.LOCAL}` is known: leave it out of `container.binds`")
    if plan.environment.check:
        raise UsageError("`environment.check` cannot be tried here: only jobs enter a container of pyxis")
    return container._replace(local=False)
