"""What a run begins from, found out at submit: the newest whole checkpoint, or why there is none."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from building import RunOnDisk
from serried.base.errors import RunNotFoundError, UsageError
from serried.records.index import Selection
from serried.records.record import Record
from serried.schema.plan import Array, Dialect, Resume
from serried.submission.again import prepare_again, resume_from
from serried.submission.deliver import deliver
from serried.train.checkpoints import store

CONTENT = b"weights"


def checkpoint(folder: Path, step: int) -> Path:
    """A whole one, as the training library leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (store.prepare(folder, step) / "replicated.pt").write_bytes(CONTENT)
    files = {"replicated.pt": {"size": len(CONTENT), "crc32": f"{zlib.crc32(CONTENT):08x}"}}
    return store.commit(folder, step, {"schema": 1, "step": step, "attempt": 1, "world_size": 1, "files": files}).path


@pytest.fixture
def run(tmp_path):
    return RunOnDisk(tmp_path / "scratch", source=str(tmp_path)).ending()


@pytest.fixture
def array(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", "abc234", indices=range(4))
    for task in range(4):
        made.ending(task=task)
    return made


def refusal(word, directory, array=None):
    with pytest.raises(UsageError) as raised:
        resume_from(word, array, directory)
    return raised.value.message, raised.value.hint


@pytest.mark.parametrize("word", ["k3f9q2", "k3f", "train", "last"])
def test_a_run_means_its_newest_whole_checkpoint(run, word, tmp_path):
    for step in (9, 100, 20):
        checkpoint(run.where.checkpoints, step)
    found = resume_from(word, None, tmp_path)
    assert (found.resume, found.warnings) == (Resume((f"{run.where.checkpoints}/step-100",), "k3f9q2"), ())
    assert str(found.resume) == "k3f9q2, step-100"


def test_torn_ones_are_passed_over_with_a_warning(run, tmp_path):
    newest = checkpoint(run.where.checkpoints, 5)
    torn = checkpoint(run.where.checkpoints, 6)
    (torn / "replicated.pt").write_bytes(CONTENT[:-1])
    (run.where.checkpoints / "step-8.tmp").mkdir()
    (run.where.checkpoints / "step-7.corrupt").mkdir()
    found = resume_from("last", None, tmp_path)
    assert (found.resume.checkpoints, found.warnings) == (
        (str(newest),),
        tuple(
            f"skipping checkpoint `{run.where.checkpoints}/{name}`: it was not written completely"
            for name in ("step-6", "step-8.tmp")
        ),
    )
    (newest / "COMPLETE").write_text("{")
    assert refusal("last", tmp_path) == (
        "run `k3f9q2` has no complete checkpoint",
        f"`{run.where.checkpoints}/step-8.tmp` was not written completely",
    )


def test_of_another_programs_checkpoints_the_one_that_changed_last_counts(run, tmp_path):
    run.where.checkpoints.mkdir()
    for age, name in enumerate(("last one.ckpt", "-rf", "z.ckpt", ".hidden", "new.ckpt.tmp")):
        (run.where.checkpoints / name).write_bytes(CONTENT)
        os.utime(run.where.checkpoints / name, (1e9 + min(age, 1), 1e9 + (age if age != 2 else -1)))
    assert resume_from("last", None, tmp_path).resume.checkpoints == (f"{run.where.checkpoints}/-rf",)


def test_a_run_that_may_go_on_is_pointed_out(tmp_path):
    run = RunOnDisk(tmp_path / "scratch", source=str(tmp_path))
    checkpoint(run.where.checkpoints, 1)
    warning = (
        "run `k3f9q2` may still be running and remove this checkpoint before the new run begins: "
        "`serried stop k3f9q2` first"
    )
    assert resume_from("last", None, tmp_path).warnings == (warning,)


def test_each_task_goes_on_from_the_same_task(array, tmp_path):
    paths = [checkpoint(array.where.task(task).checkpoints, 10 + task) for task in range(3)]
    found = resume_from("abc234", Array((0, 2)), tmp_path).resume
    assert found == Resume((str(paths[0]), str(paths[2])), "abc234")
    assert str(found) == "abc234, each task from its own checkpoint"
    assert refusal("abc234", tmp_path, Array((1, 2, 3))) == (
        "run `abc234` has no complete checkpoint of task 3",
        "`--array 1-2` leaves them out",
    )
    assert refusal("abc234", tmp_path, Array((2, 5, 6))) == (
        "run `abc234` has no tasks 5-6",
        "`--array 2` leaves them out",
    )
    assert refusal("abc234", tmp_path) == (
        "run `abc234` is an array, and this run is not",
        "name one of its tasks: `--resume abc234/0`",
    )


def test_all_tasks_may_begin_from_one(array, run, tmp_path):
    paths = [str(checkpoint(place.checkpoints, 3)) for place in (array.where.task(1), run.where)]
    assert [resume_from(word, Array((0, 1)), tmp_path).resume for word in ("abc234/1", "k3f9q2")] == [
        Resume((paths[0],), "abc234/1"),
        Resume((paths[1],), "k3f9q2"),
    ]


def test_a_path_is_taken_as_it_is_unless_it_holds_whole_checkpoints(tmp_path):
    (tmp_path / "a b.ckpt").touch()
    (tmp_path / "hf" / "checkpoint-5").mkdir(parents=True)
    newest = checkpoint(tmp_path / "ours", 7)
    words = ["./a b.ckpt", "a b.ckpt", "hf/checkpoint-5", "ours", "ours/step-7", str(tmp_path / "ours")]
    found = [resume_from(word, None, tmp_path).resume for word in words]
    expected = [tmp_path / "a b.ckpt"] * 2 + [tmp_path / "hf" / "checkpoint-5"] + [newest] * 3
    assert found == [Resume((str(path),)) for path in expected]
    assert str(found[0]) == str(tmp_path / "a b.ckpt")


def test_the_directory_of_a_run_means_the_run(run, tmp_path):
    (run.where.path / "plan.json").touch()
    assert refusal(f"{run.where.path}", tmp_path) == (
        f"the run in `{run.where.path}` has no complete checkpoint",
        f"checkpoints of the run belong in `{run.where.checkpoints}`",
    )
    newest = checkpoint(run.where.checkpoints, 7)
    assert resume_from(f"{run.where.path}", None, tmp_path).resume == Resume((str(newest),))


def test_what_is_not_there_is_an_error_before_anything_begins(run, tmp_path):
    assert refusal("", tmp_path) == ("`--resume` needs a value", "RUN, `last`, or the path of a checkpoint")
    path = checkpoint(tmp_path / "ours", 7)
    (path / "COMPLETE").unlink()
    assert refusal("ours/step-7", tmp_path) == (
        f"the checkpoint `{path}` is incomplete",
        f"`--resume {tmp_path}/ours` takes the newest complete one",
    )
    assert refusal("ours", tmp_path)[0] == f"`{tmp_path}/ours` has no complete checkpoint"
    assert refusal("./none", tmp_path)[0] == f"`{tmp_path}/none` does not exist"
    with pytest.raises(RunNotFoundError, match=r"`k3f9q3` is neither a run nor a path in this folder"):
        resume_from("k3f9q3", None, tmp_path)
    assert refusal("last", tmp_path) == (
        "run `k3f9q2` has no complete checkpoint",
        f"checkpoints of the run belong in `{run.where.checkpoints}`",
    )
    run.where.path.rename(tmp_path / "purged")
    assert refusal("last", tmp_path)[0] == "the run directory of `k3f9q2` was removed together with its checkpoints"


def test_what_another_program_did_not_finish_is_passed_over_with_a_warning(run, tmp_path):
    folder = run.where.checkpoints
    folder.mkdir()
    for age, (name, content) in enumerate({"1.pt": CONTENT, "2.pt": b"", "3.pt": b"PK\x03\x04torn"}.items()):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (1e9 + age, 1e9 + age))
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.out.tfevents.7.node").write_bytes(CONTENT)
    found = resume_from("last", None, tmp_path)
    assert (found.resume.checkpoints, found.warnings) == (
        (f"{folder}/1.pt",),
        tuple(f"skipping checkpoint `{folder}/{name}`: it was not written completely" for name in ("2.pt", "3.pt")),
    )


def hugging_face(folder: Path, *names: str) -> Path:
    for name in ("config.json", "optimizer.pt", "pytorch_model.bin", "training_args.bin", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(CONTENT)
    return folder


def test_a_path_with_checkpoints_of_a_known_framework_means_the_newest_whole_one(tmp_path):
    output = tmp_path / "output"
    for step in (900, 1000):
        hugging_face(output / f"checkpoint-{step}", "trainer_state.json")
    torn = hugging_face(output / "checkpoint-1100")
    for name in ("all_results.json", "training_args.bin", "README.md"):
        (output / name).write_text("later")
    warning = f"skipping checkpoint `{torn}`: it was not written completely"
    found = resume_from(str(output), None, tmp_path)
    assert (found.resume, found.warnings) == (Resume((f"{output}/checkpoint-1000",)), (warning,))
    assert resume_from(f"{output}/checkpoint-900", None, tmp_path).resume == Resume((f"{output}/checkpoint-900",))
    assert refusal(str(torn), tmp_path) == (
        f"the checkpoint `{torn}` is incomplete",
        f"`--resume {output}` takes the newest complete one",
    )
    pretrained = hugging_face(tmp_path / "pretrained")  # weights alone are taken as they are
    (pretrained / "optimizer.pt").unlink()
    assert resume_from(str(pretrained), None, tmp_path).resume == Resume((str(pretrained),))


def test_a_plan_of_an_earlier_version_gets_the_dialect_of_today(ask):
    """Its agents would lack what they need now, such as the variables that the next job must not inherit."""
    old = deliver(ask())
    today = old.plan.site.dialect
    place = old.directory.path / "plan.json"
    document = json.loads(place.read_text())
    del document["site"]["dialect"]
    place.write_text(json.dumps(document))

    earlier = Record(old.directory.path)
    assert earlier.plan.site.dialect == Dialect()
    assert prepare_again(Selection(earlier), os.environ).plan.site.dialect == today != Dialect()


def test_a_rerun_that_begins_afresh_needs_no_end_of_the_old_run(ask):
    record = deliver(ask())
    record.directory.exit.write_text("torn")
    assert prepare_again(Selection(record), os.environ, fresh=True).plan.resume is None
