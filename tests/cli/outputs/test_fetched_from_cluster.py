"""Results and outputs of a run on a cluster come to this machine: in one stream, each file verified."""

from __future__ import annotations

import io
import random

import pytest

from serried.base.errors import SerriedError
from serried.records import index
from serried.remote import files
from serried.remote.client import ConnectionLost
from serried.submission import fetch as fetch_files
from serried.submission.fetch import Report
from trees import tree
from written import described, put

HOSTILE = ["-rf", "a b\n$(x) {data} 'ü", "\udcff\udcfe.pt", "n" * 250]


class Link:
    """A session whose far end is here. It may be cut after some bytes of contents."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.cuts: list[int] = []
        self.before = lambda: None

    def ask(self, function, values, *, data=(), on_data=lambda _: None, seconds=None):  # noqa: ARG002
        output = io.BytesIO()
        answer = getattr(files, function)(values, io.BytesIO(b"".join(data)), output)
        content = output.getvalue()
        if function == "stream":
            self.before()
            cut = self.cuts.pop(0) if self.cuts else len(content)
            self.sent.append(min(cut, len(content)))
            for at in range(0, cut, 65_536):
                on_data(content[at : min(cut, at + 65_536)])
            if cut < len(content):
                raise ConnectionLost("the connection broke", hint="")
        else:
            on_data(content)
        return answer


def fetch(link, target, *patterns, force=False, dry_run=False, seconds=None):
    listed = files.ListedFiles(link, "last", patterns, target, seconds)
    report = listed.copy(listed.entries, force=force, dry_run=dry_run, observe=lambda _: None)
    if not dry_run:
        listed.note(report)
    return report


@pytest.fixture
def link():
    return Link()


@pytest.mark.usefixtures("project")
def test_every_file_arrives_with_its_time_and_is_known_as_fetched(started, link, tmp_path):
    made = started()
    for number, name in enumerate(HOSTILE):
        put(made.where.source, {name: "x" * 100_000}, number)
    put(made.where.results, {"a/run.sh": "#!/bin/sh\n"})
    (made.where.results / "a/run.sh").chmod(0o700)
    (made.where.results / "a/latest").symlink_to("run.sh")
    report = fetch(link, tmp_path / "to")
    assert (len(report.copied), report.problems, link.sent[0] < 5000) == (6, {}, True)
    assert {path: (tmp_path / "to" / path).lstat().st_mtime_ns for path in HOSTILE} == {
        path: (made.where.source / path).stat().st_mtime_ns for path in HOSTILE
    }
    assert (tmp_path / "to/a/run.sh").stat().st_mode & 0o100
    assert (tmp_path / "to/a/latest").readlink().name == "run.sh"
    assert described(made)[1].unfetched == 0
    assert fetch(link, tmp_path / "to").to_json() == {"copied": [], "bytes": 0, "same": 6, "kept": [], "problems": {}}
    assert len(link.sent) == 1


def test_a_cut_stream_continues_where_it_was_cut(started, link, tmp_path):
    made = started()
    content = random.Random(3).randbytes(2_000_000)
    for name in ("a.pt", "b.pt"):
        (made.where.source / name).write_bytes(content)
    link.cuts = [random.Random(7).randrange(900_000) for _ in range(8)]
    report = fetch(link, tmp_path / "to")
    assert report.copied == ["a.pt", "b.pt"]
    assert sum(link.sent) < 4_000_000 + 270_000 * len(link.sent)
    assert [(tmp_path / "to" / name).read_bytes() == content for name in ("a.pt", "b.pt")] == [True, True]
    assert sorted(tree(tmp_path / "to")) == ["a.pt", "b.pt"]


def test_a_link_that_stays_cut_ends_with_a_hint_and_the_next_call_continues(started, link, tmp_path):
    made = started()
    (made.where.source / "a.pt").write_bytes(random.Random(3).randbytes(1_000_000))
    link.cuts = [600_000, 0, 0, 0]
    with pytest.raises(ConnectionLost) as lost:
        fetch(link, tmp_path / "to")
    assert lost.value.hint == "connect again; then the same command continues the copy"
    assert described(made)[1].unfetched == 1
    link.cuts = []
    assert fetch(link, tmp_path / "to").copied == ["a.pt"]
    assert link.sent[-1] < 500_000


@pytest.mark.usefixtures("run")
def test_what_is_there_and_no_earlier_copy_is_kept_unless_it_is_equal(link, project):
    put(project, {"results/model.pt": "mine, and older", "log": "line\n"}, -999)
    assert fetch(link, project, "config.yaml", "results", "log").to_json() == {
        "copied": [],
        "bytes": 0,
        "same": 1,
        "kept": ["config.yaml", "results/model.pt"],
        "problems": {},
    }
    assert fetch(link, project, dry_run=True).kept == ["config.yaml", "results/model.pt"]
    assert (project / "results/model.pt").read_text() == "mine, and older"
    assert fetch(link, project, force=True).kept == []
    assert (project / "results/model.pt").read_text() == "weights"


def test_a_file_that_changes_during_each_copy_is_named(started, link, tmp_path, monkeypatch):
    made = started()
    put(made.where.source, {"log": "line\n", "other": "x"})
    settle = files._Arrivals._settle

    def unsteady(self, number, facts, file):
        is_log = self.entries[number].path == "log"
        settle(self, number, {**facts, "is_steady": not is_log}, file)

    monkeypatch.setattr(files._Arrivals, "_settle", unsteady)
    report = fetch(link, tmp_path / "to")
    assert (report.copied, report.problems) == (["other"], {"log": "the file changes during each copy"})
    assert tree(tmp_path / "to") == {"other": "x"}


def test_of_a_file_that_grows_whole_lines_come_and_then_only_new_ones(started, link, tmp_path):
    made = started()
    lines = "".join(f"{number} {random.Random(number).random()}\n" for number in range(20_000))
    log = made.where.source / "a/log.jsonl"
    put(made.where.source, {"a/log.jsonl": lines + "20000 0."})
    fetch(link, tmp_path / "to", seconds=0)
    assert (tmp_path / "to/a/log.jsonl").read_text() == lines
    with log.open("a") as file:
        file.write("5\n20001")
    link.cuts = [10]
    report = fetch(link, tmp_path / "to", seconds=0)
    assert (report.copied, report.problems, sum(link.sent[1:]) < 1000) == (["a/log.jsonl"], {}, True)
    assert (tmp_path / "to/a/log.jsonl").read_text() == lines + "20000 0.5\n"
    log.write_text("begun again, and longer than before\n" * 20_000)
    fetch(link, tmp_path / "to", seconds=0)
    assert (tmp_path / "to/a/log.jsonl").read_text() == log.read_text()
    log.write_text("short\nend")
    fetch(link, tmp_path / "to", seconds=0)
    assert (tmp_path / "to/a/log.jsonl").read_text() == "short\n"
    assert fetch(link, tmp_path / "to").copied == ["a/log.jsonl"]
    assert tree(tmp_path / "to") == {"a/log.jsonl": "short\nend"}


def test_a_file_that_changes_after_its_copy_is_copied_again(started, link, tmp_path):
    made = started()
    put(made.where.source, {"best.pt": "first"})
    listed = files.ListedFiles(link, "last", (), tmp_path / "to", 0)
    report = listed.copy(listed.entries, force=False, dry_run=False, observe=lambda _: None)
    put(made.where.source, {"best.pt": "the second one"}, 60)
    listed.note(report)
    assert described(made)[1].unfetched == 1
    assert fetch(link, tmp_path / "to").to_json()["copied"] == ["best.pt"]
    assert described(made)[1].unfetched == 0


def test_a_log_that_has_grown_since_an_interrupted_copy_is_copied_and_another_file_is_kept(started, link, tmp_path):
    made = started()
    put(made.where.source, {"a.csv": "1\n2\n3\n", "b.csv": "1\n2\n", "c.pt": "12", "empty.csv": "1\n"})
    listed = fetch_files.find_files(index.find("last"), (), tmp_path)
    for name in ("far", "here"):
        put(tmp_path / name, {"a.csv": "1\n2\n", "b.csv": "2\n", "c.pt": "1", "empty.csv": ""}, -999)
    reports = [
        fetch(link, tmp_path / "far", dry_run=True),
        fetch_files.compare(listed.entries, tmp_path / "here", force=False),
        fetch(link, tmp_path / "far"),
        fetch_files.copy(listed.entries, tmp_path / "here", force=False, observe=lambda _: None),
    ]
    assert [(report.copied, report.kept) for report in reports] == [(["a.csv", "empty.csv"], ["b.csv", "c.pt"])] * 4
    now = {"a.csv": "1\n2\n3\n", "b.csv": "2\n", "c.pt": "1", "empty.csv": "1\n"}
    assert [tree(tmp_path / "far"), tree(tmp_path / "here")] == [now, now]


def test_links_and_paths_that_lead_out_of_the_folder_are_refused(started, link, tmp_path):
    made = started()
    put(made.where.results, {"a/fine": "x"})
    (made.where.results / "a/out").symlink_to("../../passwd")
    (made.where.results / "a/absolute").symlink_to("/etc/passwd")
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a").symlink_to(tmp_path)
    report = fetch(link, tmp_path / "to")
    assert report.problems == {
        "a": "the target exists and is not a folder",
        "a/absolute": "it is a link that leads out of the folder, to `/etc/passwd`",
        "a/fine": "`a` is not a folder",
        "a/out": "it is a link that leads out of the folder, to `../../passwd`",
    }
    assert not (tmp_path / "fine").exists()
    (tmp_path / "to/a").unlink()
    listed = files.ListedFiles(link, "last", ["a/fine"], tmp_path / "to")
    for path in ("../x", "/x", "a/../../x", ""):
        listed.entries = [listed.entries[0].__class__(**{**vars(listed.entries[0]), "path": path})]
        report = listed.copy(listed.entries, force=True, dry_run=False, observe=lambda _: None)
        assert report.problems == {path: "its path leads out of the folder"}
    assert tree(tmp_path / "to") == {}


def test_a_file_that_is_gone_is_a_problem_of_that_file(started, link, tmp_path):
    made = started()
    put(made.where.source, {"a": "x", "b": "y"})
    listed = files.ListedFiles(link, "last", (), tmp_path / "to")
    (made.where.source / "a").unlink()
    report = listed.copy(listed.entries, force=False, dry_run=False, observe=lambda _: None)
    assert (report.copied, report.problems) == (["b"], {"a": "no such file or directory"})
    assert isinstance(report, Report)


BROKEN = {
    "not JSON": files.RECORD.pack(files.BEGIN, 1) + b"{",
    "no number": files.RECORD.pack(files.BEGIN, 2) + b"{}",
    "too long": files.RECORD.pack(files.DATA, 1 << 31),
    "nothing": b"",
}


@pytest.mark.parametrize("stream", BROKEN.values(), ids=BROKEN)
def test_a_far_end_that_sends_no_files_is_an_error(stream, started, link, tmp_path, monkeypatch):
    put(started().where.source, {"log": "line\n"})
    monkeypatch.setattr(files, "stream", lambda _values, _content, output: output.write(stream))
    with pytest.raises(SerriedError, match="cluster sen"):
        fetch(link, tmp_path / "to")
    assert tree(tmp_path / "to") == {}


def test_a_listing_of_something_else_is_an_error(started, link, tmp_path, monkeypatch):
    started()
    monkeypatch.setattr(files, "matches", lambda _values, _content, output: output.write(b'[["a", 1]]'))
    with pytest.raises(SerriedError, match="what the cluster sent are not files"):
        fetch(link, tmp_path / "to")


def test_a_link_through_another_link_does_not_lead_out(started, link, tmp_path):
    made = started()
    put(made.where.results, {"a/fine": "x"})
    (made.where.results / "here").symlink_to(".")
    (made.where.results / "out").symlink_to("here/../a")
    report = fetch(link, tmp_path / "to")
    assert report.problems == {"out": "it is a link that leads out of the folder, to `here/../a`"}
