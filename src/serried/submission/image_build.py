"""`serried image build`: the image that an experiment's ranks run in, made here or by a job, and kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from serried import config, inherit
from serried.environments import building, containers
from serried.environments.building import Observe
from serried.environments.images import Recipe
from serried.errors import UsageError
from serried.plan import Plan
from serried.submission.environment_build import by_job


@dataclasses.dataclass(frozen=True)
class Image:
    """One that Serried makes for a plan."""

    recipe: Recipe
    root: Path

    @property
    def ready(self) -> Path | None:
        """Where it is, if it is whole."""
        return self.recipe.image(self.root)

    @property
    def expected(self) -> Path:
        """Where it will be, but for a part of its folder's name."""
        return self.recipe.store(self.root).expected / self.recipe.file


def wanted(plan: Plan, environ: Mapping[str, str], options: tuple[str, ...] = ()) -> Image:
    """The image of a plan. Raises UsageError where there is nothing to make."""
    return Image(containers.to_build(plan, environ, options), Path(plan.site.root))


def provide(
    image: Image, plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], *, where: str, observe: Observe
) -> Path:
    """Where it is; made now if need be, `here` or by a `job`. Raises EnvironmentFailed with its last words."""
    if where == "here":
        builder = building.here(inherit.job_environment(plan.environment, environ))
    else:
        builder = by_job(plan, resolved, environ, where, observe)
    building.provide(image.recipe, image.root, builder, observe)
    if image.ready is None:
        raise UsageError(f"the image in `{image.expected.parent}` was there, and is gone")
    return image.ready
