"""Runs of another user below a shared root, whose files are as trustworthy as that user is."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from building import CREATED, RunOnDisk
from serried.base.files import Journal, claim, make_directory, user_name, write_json
from serried.schedulers.interface import Job

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of two users: sudo pytest")

ADA, EVE = 54321, 54322
"""Users without a name, so that no test needs to write /etc/passwd."""


@pytest.fixture
def root(tmp_path):
    """A root that the profile of `fir` names."""
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[clusters.fir]\nscheduler = "slurm"\nroot = "{tmp_path}/scratch"\n')
    return tmp_path / "scratch"


def give(run, uid=ADA, /, **plan):
    """Make a run that of another user, who leaves no record here. `plan` replaces parts of the written plan."""
    write_json(run.where.plan, {**run.plan.to_json(), **plan})
    shutil.rmtree(run.record.directory.path)
    project, experiment, name = run.where.path.parts[-3:]
    member = run.where.path.parents[2] / str(uid)
    make_directory(member / project / experiment)
    path = run.where.path.rename(member / project / experiment / name)
    chown(member, uid)
    return path


def chown(path, uid):
    os.chown(path, uid, uid, follow_symlinks=False)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(Path(folder, name), uid, uid, follow_symlinks=False)


def everything(path):
    """All that a reader could change below `path`."""
    entries = sorted(path.rglob("*"))
    return [(str(entry), entry.lstat().st_mtime_ns, entry.lstat().st_size, entry.lstat().st_mode) for entry in entries]


@pytest.mark.usefixtures("root")
def test_runs_of_others_are_listed_on_request_with_their_owner(serried, make, clock):
    clock.passed = 600
    give(make("aaaaaa", name="one").ending())
    give(make("bbbbbb", name="two", project="letters").ending("FAILED", seconds=5.0), EVE)
    make("cccccc", name="mine").ending()
    assert serried("ps").out == (
        "ID      NAME  STATE      SIZE     CLUSTER  JOB  TIME    ENDED    NOTE\n"
        "cccccc  mine  COMPLETED  2x2 cpu  fir      123  10m00s  59m ago\n"
    )
    listed = serried("ps", "--user", "all").out
    assert [line.split()[:5] for line in listed.splitlines()] == [
        ["ID", "PROJECT", "USER", "NAME", "STATE"],
        ["aaaaaa", "digits", str(ADA), "one", "COMPLETED"],
        ["bbbbbb", "letters", str(EVE), "two", "FAILED"],
        ["cccccc", "digits", "mine", "COMPLETED", "2x2"],
    ]
    runs = json.loads(serried("ps", "--user", str(ADA), "--json").out)["runs"]
    assert [(run["id"], run["user"], run["state"]) for run in runs] == [("aaaaaa", str(ADA), "COMPLETED")]
    both = serried("ps", "--user", "all", "--project", "letters", "--state", "failed", "--json").out
    assert [run["id"] for run in json.loads(both)["runs"]] == ["bbbbbb"]
    assert serried("ps", "--user", "nobody").err.startswith("no runs ")


@pytest.mark.usefixtures("root")
def test_the_scheduler_is_asked_once_for_all_others_and_finds_a_waiting_job_by_its_name(serried, make, slurm):
    give(make("aaaaaa", job=None))
    running = make("bbbbbb", job=None)
    make_directory(running.where.claims)
    claim(running.where.claim("bbbbbb-1"), "12")
    running.attempt()
    give(running, EVE)
    slurm.tell(Job("11", None, "PENDING", name="train-aaaaaa-1", reason="Priority"))
    slurm.tell(Job("12", None, "RUNNING", name="train-bbbbbb-1", nodes=("n1", "n2")))
    runs = json.loads(serried("ps", "--user", "all", "--json").out)["runs"]
    assert [(run["id"], run["state"], run["job"], run["reason"]) for run in runs] == [
        ("bbbbbb", "RUNNING", "12", None),
        ("aaaaaa", "PENDING", "11", "Priority"),
    ]
    assert slurm.polls == [(str(ADA), str(EVE))]


@pytest.mark.parametrize(
    "case",
    [
        (20, True, ("RUNNING", None, None)),
        (20, False, ("RUNNING", None, None)),
        (7200, True, ("UNKNOWN", "the scheduler does not show its job to you; its files are from 2h ago", None)),
        (None, True, ("UNKNOWN", "the scheduler does not show its job to you", None)),
    ],
)
@pytest.mark.usefixtures("root")
def test_a_job_that_the_scheduler_does_not_show_is_judged_by_the_age_of_its_files(serried, make, slurm, case):
    age, slurm.answers, expected = case
    run = make("aaaaaa", job=None)
    if age is not None:
        run.live({})
        os.utime(run.attempt().live, (time.time() - age,) * 2)
    give(run)
    (found,) = json.loads(serried("ps", "--user", "all", "--json").out)["runs"]
    assert (found["state"], found["message"], found["job"]) == expected


def test_readers_show_the_run_and_change_nothing(serried, make, root, tmp_path):
    run = make("aaaaaa").ending("FAILED", exit_code=3, message="rank 0 on n1 exited with status 3")
    run.journal({"t": CREATED + 61, "event": "started"}).log(0, "hello\nValueError: no data\n")
    make_directory(run.where.results)
    (run.where.results / "a.csv").write_text("1,2\n")
    Journal(run.attempt().metrics(0, 0)).append({"t": CREATED + 70, "step": 1, "loss": 0.5})
    give(run)
    before = everything(root)
    shown = serried("show", "aaaaaa")
    assert (shown.code, f"  user        {ADA}\n" in shown.out, "\n  record " in shown.out) == (0, True, False)
    assert "hello" in serried("logs", "aaaaaa", "--rank", "0").out
    assert "rank 0 on n1 exited with status 3" in serried("why", "aaaaaa").out
    assert serried("metrics", "aaaaaa").out.splitlines()[1].endswith(",1,0,1,0.5")
    assert serried("report", "aaaaaa").code == 0
    assert serried("wait", "aaaaaa").code == 1
    copied = serried("fetch", "aaaaaa", "--to", str(tmp_path / "copy"))
    assert (copied.code, (tmp_path / "copy/a.csv").read_text()) == (0, "1,2\n")
    assert serried("fetch", "aaaaaa").err == (
        f"error: run `aaaaaa` belongs to `{ADA}`, who alone can recover files from its nodes\n\n"
        "hint: serried fetch aaaaaa --to DIR copies its results\n"
    )
    assert everything(root) == before
    assert not list(Path(os.environ["XDG_STATE_HOME"]).rglob("aaaaaa*"))


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("command", ["stop", "rerun", "stacks", "clean --yes", "shell --rank 0", "sweep show"])
def test_any_other_command_is_refused_in_one_sentence(serried, make, command):
    give(make("aaaaaa").ending())
    words = command.split()
    name = "sweep show" if words[0] == "sweep" else words[0]
    done = serried(*words, "aaaaaa")
    sentence = f"run `aaaaaa` belongs to `{ADA}`; `serried {name}` works only on your own runs"
    assert (done.code, done.err) == (2, f"error: {sentence}\n\nhint: serried show aaaaaa\n")


@pytest.mark.usefixtures("root")
def test_a_run_that_is_not_shared_is_in_no_list_and_named_only_by_its_id(serried, make, monkeypatch):
    path = give(make("aaaaaa").ending())
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda name, *mode: Path(name) != path / "plan.json" and allowed(name, *mode))
    assert serried("ps", "--user", "all").err.startswith("no runs ")
    (path / "plan.json").unlink()
    assert serried("show", "aaaaaa").err == (
        f"error: run `aaaaaa` belongs to `{ADA}`, who does not share it\n\n"
        'hint: runs that are submitted with `share = "group"` under `[project]` can be read by the group\n'
    )
    assert serried("show", "bbbbbb").err.startswith("error: unknown run: `bbbbbb`")


@pytest.mark.usefixtures("root")
def test_a_link_to_a_file_of_the_reader_is_neither_printed_nor_copied(serried, make, tmp_path):
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE KEY\n")
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "token.csv").write_text("PRIVATE KEY\n")
    run = make("aaaaaa").ending()
    run.log(0, "x")
    log = run.attempt().rank_log(0, 0)
    log.unlink()
    log.symlink_to(secret)
    make_directory(run.where.results)
    (run.where.results / "link.csv").symlink_to(secret)
    (run.where.results / "own.csv").write_text("1\n")
    run.where.checkpoints.symlink_to(folder)
    path = give(run)
    printed = [serried(*words) for words in (("logs", "aaaaaa"), ("logs", "aaaaaa", "--tail", "3"), ("why", "aaaaaa"))]
    target = tmp_path / "copy"
    printed += [serried("fetch", "aaaaaa", each, "--to", str(target)) for each in ("*", "checkpoints")]
    assert not [done for done in printed if "PRIVATE" in done.out + done.err]
    assert [path.name for path in target.rglob("*.csv")] == ["own.csv"]
    os.utime(target / "own.csv", (1, 1))
    (target / "own.csv").write_text("2\n")
    write_json(path / run.where.fetched.name, {"name": "{results}/own.csv", "size": 2, "mtime": 1})
    assert serried("fetch", "aaaaaa", "--to", str(target)).code == 1
    assert (target / "own.csv").read_text() == "2\n"


def test_the_root_of_an_own_run_needs_no_profile(serried, make, tmp_path):
    give(make("aaaaaa").ending())
    assert serried("show", "aaaaaa").err.startswith("error: unknown run: `aaaaaa`")
    own = RunOnDisk(tmp_path / "scratch" / user_name(os.getuid()), "bbbbbb").ending()
    assert own.where.path.parents[3] == tmp_path / "scratch"
    assert serried("show", "aaaaaa").code == 0


@pytest.mark.usefixtures("root")
def test_an_id_that_two_users_have_is_neither_users(serried, make):
    path = give(make("aaaaaa", name="one").ending())
    give(make("aaaaaa", name="two").ending(), EVE)
    both = f"error: both `{ADA}` and `{EVE}` have a run `aaaaaa`\n\nhint: serried ps --user NAME\n"
    assert serried("show", "aaaaaa").err == both
    (path / "plan.json").unlink()
    assert f"  user        {EVE}\n" in serried("show", "aaaaaa").out


@pytest.mark.usefixtures("root")
def test_files_that_only_a_plan_names_are_not_looked_at(serried, make, tmp_path):
    run = make("aaaaaa")
    pipe = run.where.source / "checkpoint-20" / "trainer_state.json"
    make_directory(pipe.parent)
    os.mkfifo(pipe)
    (pipe.parent / "pytorch_model.bin").write_text("x")
    make_directory(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "elsewhere" / "serried.toml")
    run.ending("TIMEOUT", exit_code=124, cause="limit", conditions=[{"code": "no-checkpoint", "message": "none"}])
    give(run, source={**run.plan.source._asdict(), "directory": str(tmp_path / "elsewhere")})
    for word in ("why", "report", "show"):
        done = serried(word, "aaaaaa")
        assert (done.code, "resume from" in done.out) == (0, False)


HOSTILE = {
    "of another run": {"run": "bbbbbb"},
    "too many ranks": {"allocation": {"nodes": 10**9, "ranks": 10**9, "gpus": 0, "cpus": 1}},
    "too many tasks": {"array": {"indices": "0-999999999999"}},
    "a text for a number": {"allocation": {"nodes": "many"}},
    "no site": {"site": None},
    "a later version": {"schema": 99},
}


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("plan", HOSTILE.values(), ids=HOSTILE)
def test_a_plan_that_is_not_valid_is_an_unknown_run(serried, make, plan):
    give(make("aaaaaa"), **plan)
    (found,) = json.loads(serried("ps", "--user", "all", "--json").out)["runs"]
    assert (found["user"], found["state"], found["cause"]) == (str(ADA), "UNKNOWN", "unreadable")
    shown = serried("show", "aaaaaa")
    assert (shown.code, shown.err.count("error: ")) == (1, 1)


@pytest.mark.usefixtures("root")
def test_names_and_messages_of_others_move_no_cursor_and_no_claim_names_another_owner(serried, make, terminal):
    terminal(100)
    run = make("aaaaaa", name="\x1b[2Jx\u202e", project="digits").ending("FAILED", message="\x1b]0;owned\x07")
    make_directory(run.where.claims)
    run.where.claim("aaaaaa-1").write_text("\x1b[31m; rm -rf ~")
    give(run, user="root", owner="root")
    for words in (("ps", "--user", "all"), ("show", "aaaaaa"), ("why", "aaaaaa")):
        done = serried(*words)
        assert [sign for sign in ("\x1b", "\u202e", "\x07") if sign in done.out + done.err] == []
    assert str(ADA) in serried("ps", "--user", "all").out


@pytest.mark.usefixtures("root")
def test_what_only_a_record_may_say_is_not_read_from_a_run_directory(serried, make):
    run = make("aaaaaa", job=None)
    job = {**Job("9", None, "COMPLETED")._asdict(), "nodes": []}
    write_json(run.where.path / "seen.json", {"schema": 1, "at": 1, "jobs": [job], "missing": {}, "ended": {}})
    give(run)
    (found,) = json.loads(serried("ps", "--user", "all", "--json").out)["runs"]
    assert (found["state"], found["job"]) == ("UNKNOWN", None)
