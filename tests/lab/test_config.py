"""The files of a lab, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from serried.lab.config import Spec, cgroup_conf, files, gres_conf, hosts, slurm_conf, slurmdbd_conf
from tables import for_each

SPEC = Spec(
    name="lab", directory=Path("/tmp/labs/lab"), user="ada", hostname="gauss", port=21001, nodes=2, gpus=2,
    gpu_devices=("/dev/tty10", "/dev/tty11"),
)  # fmt: skip


def test_a_plain_labs_slurm_conf():
    assert slurm_conf(SPEC) == Path(__file__).with_name("slurm.conf").read_text(encoding="utf-8")


def test_accounting_adds_its_lines_and_its_file():
    spec = replace(SPEC, accounting=True)
    added = set(slurm_conf(spec).splitlines()) - set(slurm_conf(SPEC).splitlines())
    assert added == {
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        "AccountingStoragePort=21002",
        "AccountingStoragePass=/tmp/labs/lab/munge.socket",
        "AccountingStorageTRES=gres/gpu",
    }
    assert slurmdbd_conf(spec) == (
        "AuthType=auth/munge\n"
        "AuthInfo=socket=/tmp/labs/lab/munge.socket\n"
        "DbdHost=gauss\n"
        "DbdAddr=127.0.0.1\n"
        "DbdPort=21002\n"
        "SlurmUser=ada\n"
        "StorageType=accounting_storage/mysql\n"
        "StorageHost=localhost\n"
        "StorageUser=ada\n"
        "StorageLoc=slurm_acct_db\n"
        "LogFile=/tmp/labs/lab/log/slurmdbd.log\n"
        "PidFile=/tmp/labs/lab/run/slurmdbd.pid\n"
    )
    assert set(files(spec)) - set(files(SPEC)) == {"slurmdbd.conf"}


def test_typed_gpus_are_typed_in_both_files():
    spec = replace(SPEC, gpu_type="v100")
    assert gres_conf(spec) == "Name=gpu Type=v100 File=/dev/tty10\nName=gpu Type=v100 File=/dev/tty11\n"
    assert " Gres=gpu:v100:2 " in slurm_conf(spec)


def test_a_lab_without_gpus_has_no_gres_at_all():
    spec = replace(SPEC, gpus=0, gpu_devices=())
    assert "gres" not in slurm_conf(spec).lower()
    assert set(files(spec)) == {"slurm.conf", "cgroup.conf", "task-prolog.sh"}


def test_a_setting_replaces_the_labs_own_or_adds_a_line():
    text = slurm_conf(replace(SPEC, settings={"KillWait": "30", "Licenses": "matlab:2"}))
    expected = ["KillWait=30", "Licenses=matlab:2"]
    assert [line for line in text.splitlines() if line.startswith(("KillWait", "Licenses"))] == expected


def test_partitions_have_all_nodes_unless_they_name_some():
    text = slurm_conf(replace(SPEC, partitions=("short MaxTime=10", "one Nodes=n1")))
    assert text.splitlines()[-2:] == ["PartitionName=short MaxTime=10 Nodes=ALL", "PartitionName=one Nodes=n1"]


def test_features_go_on_the_nodes():
    assert " Feature=v100,nvlink State" in slurm_conf(replace(SPEC, features=("v100", "nvlink")))


@for_each(("version", "plugin"), [((22, 5), "cgroup/v1"), ((23, 2), "disabled"), ((25, 11), "disabled")])
def test_slurmd_is_kept_off_cgroups_in_its_versions_words(version, plugin):
    assert cgroup_conf(replace(SPEC, slurm_version=version)) == f"CgroupPlugin={plugin}\n"


def test_a_spec_survives_its_record():
    spec = replace(SPEC, features=("a",), partitions=("b",), settings={"KillWait": "1"}, accounting=True)
    assert Spec.from_json(spec.as_json()) == spec


def test_on_each_node_the_machines_name_leads_to_that_nodes_address():
    expected = "127.1.0.1 n1\n127.1.0.2 n2 gauss\n127.0.0.1 localhost gauss\n"
    assert hosts(SPEC, "n2", "127.0.0.1 localhost gauss\n") == expected
