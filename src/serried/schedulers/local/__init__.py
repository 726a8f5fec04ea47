"""What is special about this machine as a cluster of one node."""

from __future__ import annotations

from collections.abc import Mapping

from serried.schedulers.interface import Traits
from serried.schema import names
from serried.schema.plan import Dialect


def _no(environ: Mapping[str, str]) -> bool:
    return False


TRAITS = Traits(
    title="this machine",
    is_here=_no,
    is_around=_no,
    dialect=Dialect(task=(r"^\d+$", r"\g<0>_{}"), job_variables=(names.JOB,)),
    is_this_machine=True,
)
