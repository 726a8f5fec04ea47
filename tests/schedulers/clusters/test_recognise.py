from __future__ import annotations

import tomllib

from serried.config import definitions, layers
from serried.schedulers import clusters
from serried.schedulers.clusters import Sign, recognise
from tables import for_each

CLUSTER = definitions.ROOT.tables["clusters"].tables[definitions.EVERY]

SIGNS = [
    Sign("cedar", "slurm", hostname=("*cedar*",)),
    Sign("fir", "slurm", environ={"CC_CLUSTER": "fir"}),
    Sign("both", "slurm", hostname=("login*",), environ={"SITE": "x*"}),
    Sign("quiet", "slurm"),
    Sign("local", "local"),
    Sign("moved-pbs", "pbs", hostname=("*moved*",)),
    Sign("moved", "slurm", hostname=("*moved*",)),
]


@for_each(
    ("hostname", "environ", "name"),
    [
        ("cedar1.cedar.computecanada.ca", {}, "cedar"),
        ("CEDAR5", {}, "cedar"),
        ("login1", {"CC_CLUSTER": "fir"}, "fir"),
        ("login1", {"CC_CLUSTER": "fir2"}, "slurm"),
        ("login1", {"SITE": "xyz"}, "both"),
        ("login1", {}, "slurm"),
        ("node7", {"SLURM_CLUSTER_NAME": "quiet"}, "quiet"),
        ("node7", {"SLURM_CLUSTER_NAME": "unheard"}, "slurm"),
        ("node7", {"SLURM_CLUSTER_NAME": "local"}, "slurm"),
    ],
)
def test_a_cluster_is_recognised_by_its_host_its_variables_or_slurms_own_name(
    hostname: str, environ: dict[str, str], name: str
):
    assert recognise(SIGNS, hostname, environ, "slurm", environ.get("SLURM_CLUSTER_NAME", "")) == name


def test_any_pbs_is_one():
    assert recognise(SIGNS, "login1", {}, "pbs") == "pbs"


def test_without_a_scheduler_it_is_this_machine_whatever_it_is_called():
    assert recognise(SIGNS, "cedar", {}, None) == "local"


@for_each("name", clusters.shipped())
def test_every_shipped_profile_is_valid(name: str):
    table = tomllib.loads(clusters.shipped()[name].read_text(encoding="utf-8"))
    assert list(definitions.check({"clusters": {name: table}}))


@for_each(("scheduler", "name"), [("slurm", "moved"), ("pbs", "moved-pbs"), (None, "local")])
def test_two_profiles_of_one_site_are_told_apart_by_the_scheduler_that_is_here(scheduler: str | None, name: str):
    assert recognise(SIGNS, "login1.moved.example", {}, scheduler) == name


def places(name: str) -> list[tuple[str, ...]]:
    """Where a shipped profile says something, and it is no source itself."""
    table = tomllib.loads(clusters.shipped()[name].read_text(encoding="utf-8"))
    return [keys for keys, _ in definitions.check(table, CLUSTER) if keys[0] not in {"sources", "scheduler"}]


@for_each("name", sorted(clusters.shipped().keys() - {"local"}))
def test_every_value_of_a_shipped_profile_has_its_source_and_every_source_its_value(name: str):
    sources = schema_sources(name)
    unsourced = [keys for keys in places(name) if not any(keys[: len(place)] == place for place in sources)]
    idle = [place for place in sources if not any(keys[: len(place)] == place for keys in places(name))]
    assert (unsourced, idle) == ([], [])


def schema_sources(name: str) -> list[tuple[str, ...]]:
    table = tomllib.loads(clusters.shipped()[name].read_text(encoding="utf-8"))
    return [keys[1:] for keys, _ in definitions.check(table, CLUSTER) if keys[0] == "sources"]


@for_each(
    ("hostname", "environ", "scheduler", "name"),
    [
        ("cedar5.cedar.computecanada.ca", {}, "slurm", "cedar"),
        ("login1", {"CC_CLUSTER": "fir"}, "slurm", "fir"),
        ("login1", {"CC_CLUSTER": "narval"}, "slurm", "narval"),
        ("login1", {"CC_CLUSTER": "graham"}, "slurm", "graham"),
        ("login1", {"CC_CLUSTER": "nibi"}, "slurm", "nibi"),
        ("login01.sockeye.arc.ubc.ca", {}, "slurm", "sockeye"),
        ("login01.sockeye.arc.ubc.ca", {}, "pbs", "sockeye-pbs"),
        ("satori-login-001.mit.edu", {}, "slurm", "satori"),
        ("login509-02-r.ibex.kaust.edu.sa", {}, "slurm", "ibex"),
        ("borg.cs.ubc.ca", {}, "slurm", "plai"),
        ("firefly", {}, "slurm", "slurm"),
    ],
)
def test_the_shipped_profiles_are_recognised_where_they_belong(
    hostname: str, environ: dict[str, str], scheduler: str, name: str
):
    assert recognise(layers.signs([]), hostname, environ, scheduler) == name
