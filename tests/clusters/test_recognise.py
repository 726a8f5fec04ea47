from __future__ import annotations

import tomllib

import pytest

from serried import clusters
from serried.clusters import Sign, recognise
from serried.config import schema

SIGNS = [
    Sign("cedar", hostname=("*cedar*",)),
    Sign("fir", environ={"CC_CLUSTER": "fir"}),
    Sign("both", hostname=("login*",), environ={"SITE": "x*"}),
    Sign("quiet"),
    Sign("local"),
]


@pytest.mark.parametrize(
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
    assert recognise(SIGNS, hostname, environ, "slurm") == name


def test_any_pbs_is_one():
    assert recognise(SIGNS, "login1", {}, "pbs") == "pbs"


def test_without_a_scheduler_it_is_this_machine_whatever_it_is_called():
    assert recognise(SIGNS, "cedar", {}, None) == "local"


@pytest.mark.parametrize("name", clusters.shipped())
def test_every_shipped_profile_is_valid(name: str):
    table = tomllib.loads(clusters.shipped()[name].read_text(encoding="utf-8"))
    assert list(schema.check({"clusters": {name: table}}))


@pytest.mark.parametrize("name", sorted(clusters.shipped().keys() - {"local", "slurm", "pbs"}))
def test_every_sites_profile_says_where_its_facts_come_from(name: str):
    first_lines = clusters.shipped()[name].read_text(encoding="utf-8").partition("\nscheduler")[0]
    assert "/" in first_lines
    assert all(line.startswith("#") for line in first_lines.splitlines())
