"""Which files are outputs, and how `serried show` and `serried clean --list` count them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from building import CREATED, as_json
from serried.base.files import write_json
from serried.schema import outputs
from serried.schema.outputs import Outputs, describe
from trees import tree
from written import described, put


def test_a_tree_that_was_only_unpacked_holds_no_outputs(started):
    assert described(started()) == ([], Outputs())
    assert described(started("m2n3p4", indices=range(2))) == ([], Outputs())


@pytest.mark.usefixtures("run")
def test_new_and_changed_files_are_outputs_and_byte_code_and_links_to_the_project_are_not(serried):
    shown = serried("show", "last")
    told = as_json(serried("show", "last", "--json").out)["runs"][0]["outputs"]

    said = "3 files, 19 B, not fetched: results/model.pt, log, config.yaml"
    assert f"  outputs     {said}\n" in shown.out
    assert "serried fetch k3f9q2 --to DIR" in shown.err
    assert told == {
        "files": 3,
        "bytes": 19,
        "not_fetched": {"files": 3, "bytes": 19},
        "newest": [
            {"path": "results/model.pt", "bytes": 7, "changed": "2026-11-18T11:07:05Z"},
            {"path": "log", "bytes": 5, "changed": "2026-11-18T11:07:00Z"},
            {"path": "config.yaml", "bytes": 7, "changed": "2026-11-18T11:06:55Z"},
        ],
        "unread": 0,
        "complete": True,
    }
    waited = serried("wait", "last")
    assert waited.err.splitlines() == [
        "k3f9q2 train COMPLETED after 10m00s",
        f"  outputs: {said}",
        "  serried fetch k3f9q2 --to DIR   copy its results and outputs to a folder",
    ]


def test_written_is_written_whatever_the_content_is(started):
    """A copy of the code, a file and a link as they were in the snapshot, and a link that leads elsewhere."""
    made = started()
    source = made.where.source
    put(source, {"code/train.py": "print(1)", "results/keep": "", "config.yaml": "lr: 0.1"})
    os.utime(source / "code/train.py", (CREATED, CREATED))  # as shutil.copytree leaves it
    (source / "go").unlink()
    (source / "go").symlink_to("train.py")
    (source / "data").unlink()
    put(source, {"data/mine": "not through the link any more"})
    trees = outputs.trees(made.where, made.plan)
    found = sorted(path for each in trees for path, _, is_output in each.walk(lambda _: None) if is_output)
    assert found == ["code/train.py", "config.yaml", "data/mine", "go", "results/keep"]


def test_the_same_model_written_by_a_second_run_is_fetched(serried, started, project, tmp_path):
    """The first run has left it in the project, so the snapshot of the second has it."""
    put(project, {"out/model.pt": "weights"})
    made = started()
    put(made.where.source, {"out/model.pt": "weights"})
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert tree(tmp_path / "to") == {"out/model.pt": "weights"}
    to_project = ("fetch", "last", "--to", str(project))
    put(project, {"out/model.pt": "weights"}, -99)
    assert serried(*to_project).err == f"copied 0 files, 0 B, to {project}; 1 existed already\n"
    put(made.where.source, {"out/model.pt": "changed"}, 99)
    assert serried(*to_project).code == 1  # the project's model is the user's own
    assert (project / "out/model.pt").read_text() == "weights"


def test_without_the_archive_the_snapshot_is_known_by_its_time(run):
    Path(run.plan.source.archive).unlink()
    names, found = described(run)
    assert (sorted(names), found.files) == (["config.yaml", "log", "results/model.pt"], 3)


def test_of_a_huge_tree_only_so_much_is_looked_at_before_it_is_told(started):
    made = started()
    put(made.where.source, {f"many/{number}": "x" for number in range(50)})
    _, found = described(made, most=30)
    assert (found.is_all, found.text[:9]) == (False, "at least ")
    assert 20 <= found.files <= 30
    looked = []
    assert described(made, tell=looked.append)[1].files == 50
    assert described(made, most=1000)[1].is_all


def test_a_shared_tree_is_told_of_once(serried, started, tmp_path):
    made = started(indices=range(3), tree_per_task=False)
    put(made.where.source, {"model": "of all"})
    assert "  outputs     1 file, 6 B, not fetched: model\n" in serried("show", "last").out
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert tree(tmp_path / "to") == {"model": "of all"}


def test_a_run_in_place_has_no_outputs_and_says_where_its_files_are(serried, make):
    made = make().ending()
    plan = made.plan._replace(source=made.plan.source._replace(snapshot=False))
    write_json(made.record.directory.plan, plan.to_json())
    assert "outputs" not in serried("show", "last").out
    assert serried("fetch", "last", "*.pt").err == (
        "error: run `k3f9q2` has no file that matches `*.pt`\n\n"
        f"hint: it ran in place: files that it wrote by relative paths are in `{Path.cwd()}`\n"
    )


def test_du_counts_outputs_apart_from_the_code(serried, run):
    (thing,) = [one for one in as_json(serried("clean", "--list", "--json").out)["things"] if one["kind"] == "run"]
    parts = thing["parts"]
    assert (parts["outputs"]["files"], parts["outputs"]["bytes"]) == (3, 19)
    assert thing["bytes"] == sum(part["bytes"] for part in parts.values())
    everything = sum(1 for _ in run.where.path.rglob("*")) + 1
    assert thing["files"] == everything


class Failing:
    """What a file server that fails shows of a folder: an entry that cannot be looked at, or an end before the end."""

    def __init__(self, entries, at):
        self.entries, self.at = entries, at

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.entries.close()

    def __iter__(self):
        for entry in self.entries:
            if self.at == "entry" and entry.name == "model.pt":
                yield self
            else:
                yield entry
        if self.at == "listing":
            raise OSError(errno.EIO, "Input/output error")

    name = "model.pt"

    def stat(self, **_):
        raise OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize("at", ["entry", "listing"])
def test_a_file_server_that_fails_meanwhile_hides_a_folder_and_ends_nothing(run, monkeypatch, at):
    scan = os.scandir

    def scandir(folder):
        return Failing(scan(folder), at) if Path(folder).name == "results" else scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    found = describe(outputs.trees(run.where, run.plan))
    assert (found.unread, found.files) == (1, 2 if at == "entry" else 3)
    assert "; 1 folder cannot be read" in found.text
