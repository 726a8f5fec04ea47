"""One file for every cluster: what a cluster has no notion of, overlays, and profiles in files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolving import BARE, fake_slurm, refusal, resolve
from serried.base.errors import UsageError
from serried.submission.plan import allocate

EVERYWHERE = """
[experiments.train]
command = "python train.py"
[experiments.train.resources]
ranks = 2
account = "def-ada"
gpu_type = "v100l"
qos = "long"
"""


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("SCRATCH", "/scratch/ada")


@pytest.mark.parametrize(
    ("cluster", "kept", "note"),
    [
        ("cedar", ("def-ada", "v100l", "long"), ()),
        ("plai", (None, None, "long"), ("`plai` does not support `account` and `gpu_type`: not requested",)),
        ("pbs", ("def-ada", "v100l", None), ("`pbs` does not support `qos`: not requested",)),
        ("local", (None, None, None), ("`local` does not support `account`, `qos` and `gpu_type`: not requested",)),
    ],
)
def test_what_a_cluster_has_no_notion_of_is_left_out_with_a_note(
    folder: Path, cluster: str, kept: tuple[str | None, ...], note: tuple[str, ...]
):
    found = resolve(folder, EVERYWHERE, cluster=cluster)
    asked = found.experiment.resources
    assert ((asked.account, asked.gpu_type, asked.qos), found.notes) == (kept, note)


def test_nothing_is_said_where_nothing_was_asked(folder: Path):
    assert [resolve(folder, "", command=BARE, cluster=name).notes for name in ("plai", "pbs", "local")] == [()] * 3


@pytest.mark.parametrize(
    ("cluster", "asked", "form", "notes"),
    [
        ("slurm", "", "requeue", ()),
        ("cedar", "", "successor", ()),
        ("pbs", "", "prequeued", ()),
        ("pbs", 'continue = "successor"', "successor", ()),
        ("cedar", 'continue = "requeue"', "successor", ()),
        (
            "cedar",
            'restarts = 3\ncontinue = "requeue"',
            "successor",
            ('`cedar` does not allow `limit.continue = "requeue"`: using `successor`',),
        ),
    ],
)
def test_runs_go_on_in_a_way_that_the_cluster_has(
    folder: Path, cluster: str, asked: str, form: str, notes: tuple[str, ...]
):
    found = resolve(folder, f"[defaults.limit]\n{asked}", command=BARE, cluster=cluster)
    assert (found.experiment.limit.continue_by, found.notes) == (form, notes)


def test_a_partition_that_a_shipped_profile_does_not_describe_may_be_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    found = resolve(folder, "", command=BARE, cluster="satori", resources__partition="new")
    assert allocate(found.experiment.resources, found.cluster).partition == "new"
    fake_slurm(folder, monkeypatch, "sched_system_all*|infinite|gpu:4")
    here = '[clusters.satori.match]\nhostname = ["*"]\n'
    asked = resolve(folder, here, command=BARE, cluster="satori", resources__partition="new")
    with pytest.raises(UsageError, match="partition `new` does not exist on cluster `satori`"):
        allocate(asked.experiment.resources, asked.cluster)


def test_an_overlay_reaches_every_table_of_an_experiment(folder: Path):
    text = """
    [experiments.train]
    command = "python train.py"
    config.lr = 0.1
    [experiments.train.environment.env]
    A = "everywhere"
    [experiments.train.on.plai]
    command = "python here.py"
    seed = 3
    config.lr = 0.5
    [experiments.train.on.plai.resources]
    nodes = 2
    [experiments.train.on.plai.environment]
    inherit = "none"
    env.A = "plai"
    [experiments.train.on.plai.limit]
    grace = "5s"
    [experiments.train.on.plai.launch]
    kind = "srun"
    [experiments.train.on.plai.container]
    image = "image.sif"
    """
    there = resolve(folder, text, cluster="plai").experiment
    here = resolve(folder, text, cluster="local").experiment
    assert [
        (
            e.command[1],
            e.seed,
            e.config,
            e.resources.nodes,
            e.environment.planned.inherit,
            e.environment.planned.env,
            e.limit.grace_seconds,
        )
        for e in (there, here)
    ] == [
        ("here.py", 3, {"lr": 0.5}, 2, "none", {"A": "plai"}, 5),
        ("train.py", 0, {"lr": 0.1}, None, "all", {"A": "everywhere"}, 30),
    ]
    assert [(e.launch.kind, e.container.image.rpartition("/")[2]) for e in (there, here)] == [
        ("srun", "image.sif"),
        ("", ""),
    ]


def test_a_cluster_begins_with_the_profile_of_its_scheduler(folder: Path):
    found = resolve(folder, "[clusters.ours]\nscheduler = 'pbs'", command=BARE, cluster="ours")
    assert (found.cluster.site.kill_wait_seconds, found.experiment.limit.continue_by) == (10, "prequeued")


def profile(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_profile_may_be_a_file_of_its_own_of_the_site_or_the_user(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    config = folder.parent / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(config / "site"))
    site = profile(config / "site" / "serried" / "clusters" / "oak.toml", "max_time = '2d'\ncontact = 'help@oak'\n")
    user = profile(config / "user" / "serried" / "clusters" / "oak.toml", "# mine\nmax_time = '1d'\n")
    (user.parent / ".oak.toml.swp").write_text("[")
    found = resolve(folder, "", command=BARE, cluster="oak")
    assert (
        found.cluster.max_time,
        str(found.origins["cluster.max_time"]),
        found.cluster.site.contact,
        str(found.origins["cluster.contact"]),
    ) == (86400, f"{user}:2", "help@oak", f"{site}:2")
    (user.parent.parent / "config.toml").write_text("[clusters.oak]\nmax_time = '3d'\n")
    assert resolve(folder, "", command=BARE, cluster="oak").cluster.max_time == 3 * 86400
    user.write_text("time = '1d'")
    message, _ = refusal(folder, "", command=BARE, cluster="oak")
    assert message == f"{user}:1: unknown key `clusters.oak.time`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ignores = ['acount']", "`clusters.local.ignores` must be keys of `resources`, not `acount`"),
        (
            "continues = ['again']",
            "`clusters.local.continues` must be `requeue`, `successor` or `prequeued`, not `again`",
        ),
        ("sources = 'me'", "`clusters.local.sources` is a table of names and values"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_line(folder: Path, text: str, message: str):
    assert refusal(folder, f"[clusters.local]\n{text}", command=BARE)[0] == f"serried.toml:2: {message}"
