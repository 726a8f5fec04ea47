"""Clusters and their roots, as they are recognised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resolving import BARE, fake_slurm, refusal, resolve


def test_a_root_under_home_is_noted_on_a_cluster_and_a_matter_of_course_in_a_lab(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_slurm(folder, monkeypatch)
    monkeypatch.delenv("USER", raising=False)
    home = os.environ["HOME"]
    found = resolve(folder, command=BARE, resources__ranks=1)
    expected = (f"{home}/serried", (), [f"run directories go to `{home}/serried`"])
    assert (found.cluster.site.root, found.warnings, [note.split(",")[0] for note in found.notes]) == expected

    (folder / "lab.json").write_text("{}")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    found = resolve(folder, command=BARE, resources__ranks=1)
    assert (found.cluster.site.root, found.warnings, found.notes) == (f"{home}/serried", (), ())


@pytest.mark.parametrize("variable", ["SCRATCH", "PSCRATCH"])
def test_run_directories_go_to_scratch_on_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv(variable, "/lustre/ada")
    found = resolve(folder, command=BARE, resources__ranks=1)
    expected = ("/lustre/ada/serried", variable, ())
    assert (found.cluster.site.root, str(found.origins["cluster.root"]), found.warnings) == expected


def test_run_directories_go_to_the_users_data_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve(folder, command=BARE).cluster.site.root == f"{os.environ['XDG_DATA_HOME']}/serried"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert resolve(folder, command=BARE).cluster.site.root == f"{os.environ['HOME']}/.local/share/serried"


def test_a_root_may_name_variables_and_must_be_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORK", "/w/ada")
    assert resolve(folder, "[clusters.local]\nroot = '${WORK}/runs'", command=BARE).cluster.site.root == "/w/ada/runs"
    assert refusal(folder, "[clusters.local]\nroot = '$NOWHERE/x'", command=BARE)[0] == (
        "serried.toml:2: `root` names `$NOWHERE`, which is not set here"
    )
    assert refusal(folder, "[clusters.local]\nroot = 'runs'", command=BARE)[0] == (
        "serried.toml:2: `root` must be an absolute path, not `runs`"
    )


def test_folders_of_a_cluster_elsewhere_are_shown_as_they_are_there(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PSCRATCH", "/scratch/of/the/laptop")
    file = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[clusters.oak]\nlogin = "oak"\n')
    oak = {"cluster": "oak", "command": BARE, "resources__gpus": 1}
    found = resolve(folder, **oak)
    shown = (found.cluster.site.root, found.cluster.site.scratch, str(found.origins["cluster.root"]), found.notes)
    assert shown == ("~/serried", "", "default, unless its login node sets SCRATCH", ())
    assert resolve(folder, clusters__oak__root="$SCRATCH/runs", **oak).cluster.site.root == "$SCRATCH/runs"


def test_a_root_that_names_the_user_is_found_by_cron_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setenv("LOGNAME", "ada")
    assert resolve(folder, "[clusters.local]\nroot = '/w/$USER'", command=BARE).cluster.site.root == "/w/ada"


def test_a_job_without_gpus_is_no_surprise_where_slurm_did_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("SCRATCH", "/lustre/ada")
    warning = "the GPUs of `slurm` are not known, so the job requests none: pass --gpus N, or --ranks N for CPUs"
    seen = [resolve(folder, command=BARE).warnings]
    seen += [resolve(folder, command=BARE, resources__ranks=2).warnings]
    assert seen == [(warning,), ()]


def test_slurm_is_asked_for_its_partitions_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch, "gpu*|1-00:00:00|gpu:v100:4(S:0-1)\ncpu|2:00:00|(null)")
    cluster = resolve(folder, command=BARE).cluster
    expected = ("slurm", 4, ("v100",), "gpu")
    assert (cluster.name, cluster.gpus_per_node, cluster.gpu_types, cluster.default_partition) == expected
    assert {name: (p.time, p.gpus) for name, p in cluster.partitions.items()} == {"gpu": (86400, 4), "cpu": (7200, 0)}


def test_a_users_profile_is_recognised_by_its_signs(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("CC_CLUSTER", "fir")
    text = "[clusters.fir]\nroot = '/scratch'\n[clusters.fir.match.environ]\nCC_CLUSTER = 'fir*'"
    assert resolve(folder, text, command=BARE).cluster.name == "fir"


def test_the_cluster_can_be_named_in_the_file_the_environment_and_on_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "[defaults]\ncluster = 'cedar'"
    seen = [resolve(folder, text, command=BARE).cluster.name]
    monkeypatch.setenv("SERRIED_CLUSTER", "ibex")
    seen += [
        resolve(folder, text, command=BARE).cluster.name,
        resolve(folder, command=BARE, cluster="local").cluster.name,
    ]
    assert seen == ["cedar", "ibex", "local"]


@pytest.mark.usefixtures("in_lab")
@pytest.mark.parametrize(("cluster", "is_here"), [("cedar", False), ("slurm", True), ("mine", True)])
def test_another_clusters_profile_is_not_filled_with_what_the_scheduler_here_says(
    tmp_path: Path, cluster: str, is_here: bool
):
    """Cedar has signs by which it is known, and this is not it. One without signs may be anywhere."""
    (tmp_path / "serried.toml").write_text('[clusters.mine]\ncontact = "me"\n', encoding="utf-8")
    found = resolve(tmp_path, command=BARE, resources__ranks=1, cluster=cluster).cluster
    assert ("lab" in found.partitions, found.gpus_per_node == 4) == (is_here, is_here)


@pytest.mark.usefixtures("in_lab")
def test_a_cluster_that_is_called_as_its_slurm_is_here(tmp_path: Path):
    (tmp_path / "serried.toml").write_text('[clusters.lab.match]\nhostname = ["login*"]\n', encoding="utf-8")
    found = resolve(tmp_path, command=BARE, resources__ranks=1, cluster="lab").cluster
    assert "lab" in found.partitions
