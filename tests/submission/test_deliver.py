import errno
import json
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serried.base.errors import SchedulerUnreachable, SubmissionRefused, SubmissionUncertain, UsageError
from serried.base.files import user_name
from serried.records.index import records
from serried.records.record import Record
from serried.submission import deliver as delivering
from serried.submission.deliver import deliver, see_through


def test_a_submission_is_recorded_before_the_scheduler_is_asked_and_after_it_answered(ask, scheduler):
    prepared = ask()
    before = []
    scheduler.while_asked = lambda: before.extend(records()[0].submissions)

    record = deliver(prepared)

    assert [(each.state, each.job, each.by_pid) for each in before] == [("submitting", None, os.getpid())]
    assert [(each.state, each.job, each.token) for each in record.submissions] == [("submitted", "1", prepared.token)]


def test_what_is_written_is_private_and_little(ask, root, tree):
    record = deliver(ask(name="first try"))
    run = record.id
    digest = record.plan.source.archive.rpartition("/")[2]
    agent, library = ((root / "project" / "train" / run / name).readlink() for name in ("agent.pyz", "library.zip"))
    assert agent.parent == library.parent == root / ".serried" / "agents"
    assert tree(root) == {
        ".serried": "0o700",
        ".serried/agents": "0o700",
        f".serried/agents/{agent.name}": "0o600",
        f".serried/agents/{library.name}": "0o600",
        "project": "0o700",
        "project/sources": "0o700",
        f"project/sources/{digest}": "0o600",
        "project/train": "0o700",
        f"project/train/{run}": "0o700",
        f"project/train/{run}/agent.pyz": "0o777",
        f"project/train/{run}/claims": "0o700",
        f"project/train/{run}/job.sh": "0o600",
        f"project/train/{run}/library.zip": "0o777",
        f"project/train/{run}/plan.json": "0o600",
    }
    assert tree(record.directory.path) == {
        "plan.json": "0o600",
        "source.json": "0o600",
        "submissions": "0o700",
        "submissions/1.json": "0o600",
        "where": "0o600",
    }


def test_a_group_shares_what_it_asks_to_share(ask, root, tree):
    before = os.umask(0o022)
    try:
        deliver(ask(overrides={"project.share": "group"}))
    finally:
        os.umask(before)
    assert set(tree(root).values()) == {"0o750", "0o640", "0o777"}  # links have no mode of their own


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_shared_run_is_readable_whatever_the_umask_and_the_runs_before(ask, root, tree, mask):
    root.mkdir(mode=0o700)
    root.chmod(0o3770)
    before = os.umask(mask)
    try:
        private = deliver(ask()).where.path
        record = deliver(ask(overrides={"project.share": "group"}))
    finally:
        assert os.umask(before) == mask
    own = root / user_name(os.getuid())
    assert record.where.path == own / "project" / "train" / record.id
    assert oct(private.stat().st_mode & 0o7777) == "0o2700"
    assert [oct(path.stat().st_mode & 0o7777) for path in record.where.path.parents[:3]] == ["0o2750"] * 3
    assert set(tree(record.where.path).values()) == {"0o2750", "0o640", "0o777"}


def test_threads_that_submit_shared_runs_at_once_leave_the_umask(ask):
    before = os.umask(0o077)
    try:
        runs = [ask(overrides={"project.share": "group"}) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(deliver, runs))
    finally:
        assert os.umask(before) == 0o077


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user: sudo pytest")
def test_a_root_of_another_user_has_a_folder_of_each_user(ask, root):
    root.mkdir()
    os.chown(root, 54321, 54321)
    run = deliver(ask())
    own = root / user_name(0)
    assert (run.where.path.parents[2], Path(run.plan.source.archive).parents[2]) == (own, own)
    assert run.where.agent.readlink().parent == own / ".serried" / "agents"
    os.chown(own, 54321, 54321)
    with pytest.raises(UsageError, match="another user owns"):
        ask()


def test_a_root_that_is_a_link_to_an_own_folder_stays(ask, root, tmp_path):
    root.symlink_to(tmp_path / "own")
    assert Path(ask().plan.directory).parents[2] == root
    (tmp_path / "own").mkdir(mode=0o755)
    assert Path(ask().plan.directory).parents[2] == root


def test_a_shared_root_in_which_members_can_delete_is_warned_of(ask, root):
    root.mkdir()
    root.chmod(0o2770)
    assert ask().notes == (f"other users can replace your runs in `{root}`: `chmod +t` it",)


def test_runs_below_a_root_share_what_they_bring_along_of_serried(ask, root):
    runs = [deliver(ask(name=name)) for name in ("one", "two")]
    sizes = [sum(path.lstat().st_size for path in run.where.path.rglob("*") if not path.is_dir()) for run in runs]
    assert max(sizes) < 300_000
    assert [path.name.partition("-")[0] for path in sorted((root / ".serried" / "agents").iterdir())] == [
        "agent",
        "library",
    ]
    for run in runs:
        assert zipfile.is_zipfile(run.where.agent)
        assert zipfile.is_zipfile(run.where.library)


def test_a_root_that_pythonpath_cannot_name_is_warned_of(ask, tmp_path):
    root = tmp_path / "a:b"
    (said,) = ask(overrides={"clusters.local.root": str(root)}).warnings
    assert said == f"ranks cannot import `serried.train` from `{root}`: PYTHONPATH cannot name a path with a `:`"


@pytest.mark.parametrize("error", [SubmissionRefused("no"), SchedulerUnreachable("away")])
def test_what_was_not_delivered_leaves_nothing_but_archives(ask, scheduler, root, tree, error):
    scheduler.accepts, scheduler.raises = False, error
    with pytest.raises(type(error)):
        deliver(ask())
    shared = ("project/sources", ".serried")
    assert [path for path in tree(root) if not path.startswith(shared)] == ["project"]
    assert records() == []


def test_what_may_have_been_delivered_stays_on_record(ask, scheduler):
    scheduler.raises = SubmissionUncertain("no answer")
    with pytest.raises(SubmissionUncertain) as caught:
        deliver(ask())
    (record,) = records()
    assert [(each.state, each.message) for each in record.submissions] == [("uncertain", "no answer")]
    assert "do not submit it again" in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_an_interruption_while_the_scheduler_is_asked_is_uncertain(ask, scheduler):
    scheduler.raises = KeyboardInterrupt()
    with pytest.raises(SubmissionUncertain, match="interrupted during `true`"):
        deliver(ask())
    assert records()[0].submissions[0].state == "uncertain"


def test_a_run_whose_folder_goes_with_another_run_meanwhile_has_one_of_its_own(ask, scheduler, root, monkeypatch):
    make_directory = delivering.make_directory

    def make_and_lose(path, *arguments):
        make_directory(path, *arguments)
        if path != root:
            monkeypatch.setattr(delivering, "make_directory", make_directory)
            delivering.remove_empty_above(path / "k3f9q2")

    monkeypatch.setattr(delivering, "make_directory", make_and_lose)
    record = deliver(ask())
    assert (record.where.job_script.is_file(), len(scheduler.asked)) == (True, 1)
    assert root in record.where.path.parents


def test_an_interruption_as_soon_as_it_is_submitted_takes_back_what_was_to_be_seen_through(ask, scheduler, monkeypatch):
    cancelled, write = [], Record.write_submission
    scheduler.cancel = cancelled.extend

    def write_and_interrupt(record, submission):
        write(record, submission)
        if submission.state == "submitted":
            raise KeyboardInterrupt

    monkeypatch.setattr(Record, "write_submission", write_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        see_through(ask(), lambda: None)
    assert cancelled == ["1"]


def test_commit_diff_and_untracked_files_are_on_record(ask, project):
    os.system(f"cd {project} && git init -q -b main && git add . && git commit -qm first")
    (project / "train.py").write_text("print('changed')\n")
    (project / "new.py").write_text("")
    (project / ".gitignore").write_text("data\n")
    (project / "data").mkdir()
    (project / "data/x").write_text("")

    record = deliver(ask())

    source = json.loads(record.directory.source.read_text())
    assert (source["branch"], source["dirty"], source["files"]) == ("main", True, 3)
    assert source["untracked"] == [".gitignore", "new.py"]
    assert source["links"] == ["data"]
    assert len(source["commit"]) == 40
    assert "+print('changed')" in record.directory.diff.read_text()


def test_commands_of_an_array_are_one_file(ask, project):
    (project / "commands.txt").write_text("python train.py 1\n\npython train.py 'a b'\n")
    record = deliver(ask(command=None, each=project / "commands.txt", array="1"))
    assert json.loads(record.where.commands.read_text()) == [["python", "train.py", "a b"]]
    assert record.plan.array is not None
    assert record.plan.array.indices == (1,)


@pytest.mark.parametrize("folder", ["root", "state_home"])
def test_a_folder_that_cannot_be_made_is_refused_with_nothing_left(request, ask, scheduler, state_home, folder):
    request.getfixturevalue(folder).write_text("a file")
    with pytest.raises(UsageError, match="cannot write to"):
        deliver(ask())
    assert not (state_home / "serried/runs").exists()
    assert scheduler.jobs == {}


@pytest.mark.parametrize("file", ["plan.json", "1.json", "source.json", "job.sh", "agent.pyz", "library.zip"])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half_made(ask, scheduler, root, monkeypatch, file):
    """Whichever file it is that does not fit."""
    replace = Path.replace

    def full(self, target):
        if re.sub("-[0-9a-f]{16}", "", Path(target).name) == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    prepared = ask()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="no space is left"):
        deliver(prepared)
    assert records() == []
    assert [path.name for path in (root / "project").iterdir()] == ["sources"]
    assert scheduler.jobs == {}


def test_too_little_space_is_seen_before_anything_is_written(ask, scheduler, root, tree, monkeypatch):
    full = os.statvfs_result((4096, 4096, 100, 100, 100, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)  # noqa: ARG005
    with pytest.raises(UsageError, match=r"has only 409\.6 kB of free space"):
        deliver(ask())
    assert tree(root) == {}
    assert scheduler.jobs == {}


def test_lines_of_a_file_are_commands_enough_for_an_experiment_without_one(ask, project):
    (project / "serried.toml").write_text("[experiments.lines]\nresources.ranks = 1\n")
    (project / "commands.txt").write_text("echo one\necho two\n")
    prepared = ask(command=None, experiment="lines", each=project / "commands.txt")
    assert prepared.each == (("echo", "one"), ("echo", "two"))


@pytest.mark.parametrize(
    ("site", "hint"),
    [
        ({"contact": "help@oak", "docs": "https://oak"}, "ask help@oak, or see https://oak"),
        ({"docs": "https://oak"}, "see https://oak"),
        ({}, None),
    ],
)
def test_who_can_help_is_named_where_the_scheduler_refuses(ask, scheduler, site, hint):
    scheduler.accepts, scheduler.raises = False, SubmissionRefused("Slurm refused the job", details="Invalid account")
    with pytest.raises(SubmissionRefused) as caught:
        deliver(ask(overrides={f"clusters.local.{key}": value for key, value in site.items()}))
    assert (caught.value.hint, caught.value.details) == (hint, "Invalid account")
