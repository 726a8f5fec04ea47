"""What is staged is there, counted, and fits, before anything is submitted; what makes it runs once."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from serried.base import archives
from serried.base.errors import DataFailed, UsageError
from serried.base.processes import identify
from serried.schema.plan import After, Data, Environment, Staged
from serried.submission import data
from serried.submission.data import count
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide


@pytest.fixture
def pool(tmp_path):
    folder = tmp_path / "scratch of ada"
    (folder / "datasets" / "a").mkdir(parents=True)
    (folder / "datasets" / "a" / "one").write_bytes(b"x" * 1000)
    (folder / "datasets" / "a" / "two\n").write_bytes(b"x" * 500)
    with tarfile.open(folder / "labels.tar", "w") as file:
        file.add(folder / "datasets")
    return folder


@pytest.fixture
def stage(ask, pool, monkeypatch):
    """Prepare a run that stages `items`, on a machine whose disk takes `disk`; counting has all the time."""
    monkeypatch.setattr(data, "SECONDS", 900.0)

    def prepared(*items, disk="/tmp", prepare=None, **site):
        settings = {"data.root": str(pool), "data.stage": list(items)}
        settings |= {"data.prepare": prepare} if prepare else {}
        settings |= {"clusters.local.local_disk": disk} if disk else {}
        return ask(overrides={**settings, **{f"clusters.local.{key}": value for key, value in site.items()}})

    return prepared


def test_what_is_staged_is_counted_where_it_is(stage, pool):
    made = stage("datasets/a", "labels.tar", {"from": f"{pool}/datasets", "to": "all of it"})
    size = (pool / "labels.tar").stat().st_size
    assert made.plan.data.stage == (
        Staged(f"{pool}/datasets/a", "datasets/a", "", 1500, 2),
        Staged(f"{pool}/labels.tar", "labels", "tar", size, 1),
        Staged(f"{pool}/datasets", "all of it", "", 1500, 2),
    )
    assert made.notes == ()


def test_notes_name_data_that_is_read_in_place_not_counted_or_better_packed(stage, monkeypatch, pool):
    assert stage("datasets/a", disk=None).notes == (
        "data is read in place: `[clusters.local] local_disk` names the folder of the nodes' own disks",
    )
    monkeypatch.setattr(data, "MANY_FILES", 1)
    assert [note.partition(" is ")[2][:16] for note in stage("datasets/a").notes] == ["many small files"]
    monkeypatch.setattr(data, "SECONDS", -1.0)
    made = stage("datasets")
    assert made.plan.data.stage == (Staged(f"{pool}/datasets", "datasets"),)
    assert [note.partition(" has ")[0] for note in made.notes] == [f"`{pool}/datasets`"]


def test_what_cannot_be_staged_is_refused_with_what_to_do(stage, pool):
    (pool / "empty.tar").write_bytes(bytes(10240))
    (pool / "no.zip").write_bytes(b"hello")
    (pool / "no.tar").write_bytes(b"hello" * 1000)
    with tarfile.open(pool / "cut.tar", "w") as file:
        file.addfile(tarfile.TarInfo("a"))
    os.truncate(pool / "cut.tar", 512)
    (pool / "folder.tar").mkdir()
    (pool / "gone").symlink_to("nowhere")
    os.mkfifo(pool / "pipe")
    for item, message, hint in (
        ("datasets/b", "`{}` does not exist", f"`{pool}/datasets` has no `b`"),
        ("dataset/a", "`{}` does not exist", "did you mean `datasets`?"),
        ("gone", "`{}` does not exist", "it is a link to `nowhere`"),
        ("pipe", "`{}` is neither a file nor a folder", ""),
        ("empty.tar", "the archive `{}` is empty", "`{from ="),
        ("no.zip", "`{}` is not a zip file, despite its name", "`{from ="),
        ("no.tar", "`{}` is not a tar file, despite its name", "`{from ="),
        ("cut.tar", "the archive `{}` has no end: it is truncated, or still being written", "`{from ="),
        ("folder.tar", "`{}` is a folder with the name of an archive", "`{from ="),
    ):
        with pytest.raises(UsageError) as caught:
            stage(item)
        assert caught.value.message == f"`data.stage`: {message.format(pool / item)}"
        assert (caught.value.hint or "").startswith(hint)


def test_what_cannot_be_read_is_named_before_a_job_waits_for_it(stage, pool, monkeypatch):
    secret = pool / "datasets" / "a" / "one"
    secret.chmod(0)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)  # as for anybody but root
    monkeypatch.setattr(os, "access", lambda path, _: os.fsdecode(path) != str(secret))
    with pytest.raises(UsageError, match=r"`.*/datasets/a/one` cannot be read: permission denied"):
        stage("datasets")
    really = os.scandir

    def refuse(path):
        if os.fsdecode(path).endswith("/a"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"`.*/datasets/a` cannot be read: permission denied"):
        stage("datasets")


def test_more_than_a_node_has_room_for_is_refused(stage, pool):
    with zipfile.ZipFile(pool / "many.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(5):
            file.writestr(f"{number}", bytes(500_000))
    assert stage("datasets/a", local_disk_size="1M", local_disk_files=2).plan.data
    for limits, message in (
        ({"local_disk_size": "2M"}, "needs 2.5 MB, archives both packed and unpacked, but a job may use 2.1 MB of"),
        ({"local_disk_files": 5}, "needs 6 files, archives both packed and unpacked, but a job may use 5 files of"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            stage("many.zip", **limits)
        assert f"`[clusters.local] {next(iter(limits))}`" in (caught.value.hint or "")


def compressed(pool, size):
    """The same tar of one file, by several programs."""
    (pool / "zeros").write_bytes(bytes(size))
    for command in (
        "tar -cf z.tar zeros; gzip -k z.tar; zstd -q z.tar -o z.tar.zst; tar --zstd -cf stream.tar.zst zeros",
        "cat z.tar.gz z.tar.gz >two.tar.gz; pzstd -q z.tar -o parts.tar.zst",
    ):
        subprocess.run(["bash", "-ec", command], cwd=pool, check=True)


def test_what_a_compressed_tar_becomes_is_known_as_far_as_it_says(stage, pool):
    compressed(pool, 3_000_000)
    for name in ("z.tar.gz", "two.tar.gz", "z.tar.zst"):
        with pytest.raises(UsageError, match=r"needs at least 2\.1 MB, archives both packed and unpacked"):
            stage(name, local_disk_size="1M")
    for name in ("stream.tar.zst", "parts.tar.zst"):
        assert stage(name, local_disk_size="1M").notes == ()


def test_what_a_large_gzip_may_become_is_guessed_and_said(stage, pool, monkeypatch):
    """Its end has its size but for whole multiples of 4 GiB; and a guess is no reason to refuse it."""
    compressed(pool, 3_000_000)
    with (pool / "z.tar.gz").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write((1000).to_bytes(4, "little"))
    monkeypatch.setattr(archives, "SAMPLE", 1500)
    assert stage("z.tar.gz", local_disk_size="8M").notes == ()
    (note,) = stage("z.tar.gz", local_disk_size="2M").notes
    size = r"about (2\.[89]|3\.[0-5]) MB"
    assert re.match(rf"the staged data may not fit: {size}, but a job may use 2\.1 MB of a node's disk on", note)
    assert re.search(rf"z.tar.gz` {size}, estimated from the beginning\)$", note)


def test_holes_need_no_room_and_a_file_of_several_names_needs_room_once(stage, pool):
    with (pool / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    made = stage("sparse", local_disk_size="1G")
    assert (made.plan.data.stage[0].bytes, made.notes) == (10 << 30, ())
    (pool / "datasets" / "a" / "large").write_bytes(b"x" * (1 << 20))
    for number in range(4):
        (pool / "datasets" / f"twin {number}").hardlink_to(pool / "datasets" / "a" / "large")
    assert stage("datasets", local_disk_size="2M").plan.data.stage[0].bytes == 5 * (1 << 20) + 1500


def test_what_a_run_before_it_makes_need_not_be_there_yet(stage, pool):
    made = stage("datasets/a")
    after = After("k3f9q2", "train", "/scratch/runs/k3f9q2")
    missing = Data((Staged(f"{pool}/later", "later"),))
    plan = made.plan._replace(data=missing, after=(after,))
    resolved = SimpleNamespace(experiment=SimpleNamespace(data=SimpleNamespace(prepare=())))
    settled = data.settle(plan, resolved, {}, None)
    assert settled.plan.data == missing
    assert settled.notes == (
        f"`{pool}/later` does not exist yet: nodes look for it when the run begins, after its dependencies",
    )


def test_links_and_folders_are_not_what_is_counted(tmp_path):
    folder = tmp_path / "many"
    for name in ("a", "b", "b/c"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(b"12345")
    (folder / "loop").symlink_to("..")
    found = count(str(folder), 900, lambda _: None)
    assert (found.bytes - 2, found.files, found.unreadable, found.is_whole) == (15, 4, [], True)


# What makes the data.


@pytest.fixture
def maker(project):
    (project / "make.py").write_text(
        "import os, pathlib, sys\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "assert str(root) == os.environ['SERRIED_DATA_DIR']\n"
        "print('making it', os.environ.get('WHAT'))\n"
        "with (root / 'times').open('a') as file: file.write('x')\n"
        "(root / 'made').write_text('data')\n"
    )
    return [sys.executable, "make.py", "{data}"]


def times(pool):
    return len((pool / "times").read_text()) if (pool / "times").exists() else 0


def test_what_makes_data_runs_once_and_again_when_something_of_it_has_changed(stage, maker, pool, project):
    for _ in range(2):
        assert stage("made", prepare=maker).plan.data.stage[0].bytes == 4
    assert times(pool) == 1
    (project / "make.py").write_text((project / "make.py").read_text() + "# changed\n")
    stage("made", prepare=maker)
    assert times(pool) == 2
    (pool / "made").unlink()
    stage("made", prepare=maker)
    assert times(pool) == 3
    assert sorted(path.suffix for path in (project / ".serried" / "data").iterdir()).count(".json") == 2


def test_a_dry_run_says_that_it_would_run(maker, pool, project, root, scheduler):
    assert scheduler.accepts
    overrides = {
        "clusters.local.root": str(root),
        "data.root": str(pool),
        "data.stage": ["made"],
        "data.prepare": maker,
    }
    decided = decide(Request(command=("true",), cluster="local", overrides=overrides), project, os.environ)
    made = prepare(decided.plan, decided.resolved, os.environ, observe=None)
    said = "runs first, on this machine: the data is unknown in this dry run"
    assert made.notes == (f"`{sys.executable} make.py '{{data}}'` {said}",)
    assert (times(pool), (project / ".serried").exists()) == (0, False)


def test_where_nothing_is_staged_it_makes_what_ranks_find_in_the_project(ask, maker, project):
    (project / "data").mkdir()
    ask(overrides={"data.prepare": maker})
    assert (project / "data" / "made").read_text() == "data"


def test_a_failure_is_reported_with_the_last_lines_and_tried_again(stage, project):
    lines = ["printf 'reaching the host\\r\\n'", "for n in {1..99}; do printf '\\r%d %%' $n; done", "echo"]
    (project / "fails.sh").write_text("\n".join([*lines, "echo no space left; exit 3"]))
    for _ in range(2):
        with pytest.raises(DataFailed) as caught:
            stage("made", prepare="bash fails.sh")
        error = caught.value
        assert error.message == "preparing the data with `bash fails.sh` failed: exit status 3"
        assert error.details == "reaching the host\n99 %\nno space left"  # of a bar of progress, its last state
        assert Path(error.hint.rpartition(" ")[2]).read_text().endswith("no space left\n")
    with pytest.raises(UsageError, match=r"`.*/made` does not exist") as refused:
        stage("made", prepare="true")
    assert (refused.value.hint or "").startswith("`true` exited with status 0; relative paths are below its `{data}`")


def test_it_has_the_environment_of_the_experiment(ask, project, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    settings = {
        "data.prepare": ["bash", "-c", "echo $TOKEN $WHAT $SET $PWD >../said"],
        "environment.env": {"WHAT": "it"},
        "environment.secrets": ["TOKEN"],
        "environment.setup": "export SET=is-$PWD",
    }
    ask(overrides=settings)
    assert (project.parent / "said").read_text() == f"s3cret it is-{project} {project}\n"
    kept = [path.read_bytes() for path in (project / ".serried").rglob("*") if path.is_file()]
    assert [text for text in kept if b"s3cret" in text] == []


def test_an_interrupted_one_leaves_nothing_that_looks_made_and_nothing_running(project, wait_until, tmp_path):
    (project / "slow.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "serried", "run", "--set", f"data.prepare={sys.executable} slow.py", "--", "true"]
    started = subprocess.Popen(command, cwd=project, start_new_session=True, stderr=subprocess.PIPE)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    os.kill(started.pid, signal.SIGINT)
    started.communicate(timeout=900)
    assert started.returncode == 130
    assert list((project / ".serried" / "data").glob("*.json")) == []
    wait_until(lambda: identify(pid) is None, what="the command has ended")


def test_a_changed_environment_makes_it_anew(tmp_path):
    command, environment = ("python", "x.py"), Environment(env={"A": "1"})
    recipes = [
        data.preparation(command, tmp_path, "/data", environment),
        data.preparation(command, tmp_path, "/data", Environment(env={"A": "2"})),
        data.preparation(command, tmp_path, "/data", environment._replace(modules=("python/3.11",))),
        data.preparation(command, tmp_path, "/other", environment),
        data.preparation(("python", "y.py"), tmp_path, "/data", environment),
    ]
    assert len({recipe.name for recipe in recipes}) == 5
