"""What a rank says when it fails, and which exceptions are those of a rank that lost another."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from serried.schema import failure_report
from serried.schema.failure_report import TakenReport
from tables import for_each

WORD = failure_report.FailureReport(
    world_size=4, at=12.5, exit_code=5, signal=None, error="SystemExit: 5", lost_peer=False, order=1
)
GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


def test_reports_are_taken_once_and_each_rank_has_its_own(tmp_path):
    outer, inner = (failure_report.place_of(str(tmp_path / "stop"), *rank) for rank in [(3, "1"), (3, "1.1", "3")])
    later = WORD._replace(at=13.0)
    failure_report.write(f"{outer}@n1.7@n1.8", 0, later)
    failure_report.write(outer, 3, WORD)
    failure_report.write(inner, 3, WORD)
    expected = [TakenReport(WORD, 3, []), TakenReport(later, 0, ["n1.7", "n1.8"])]
    assert [failure_report.take(outer), failure_report.take(outer)] == [expected, []]
    assert [path.name for path in tmp_path.glob("stop*")] == ["stop.failing-1.1-3-3.3"]


def test_only_a_later_session_retracts_a_report(tmp_path):
    place = str(tmp_path / "failing-0")
    failure_report.begin_retry(place, 0)
    failure_report.write(place, 0, WORD)
    failure_report.retract(place, 0)  # of a session beside it, which had begun before
    failure_report.begin_retry(place, 0)
    assert failure_report.take(place) == [TakenReport(WORD._replace(is_past=True), 0, [])]
    failure_report.write(place, 0, WORD)
    failure_report.begin_retry(place, 0)
    failure_report.retract(place, 0)
    assert failure_report.take(place) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"at": 1}', '{"at": "now", "error": ""}'])
def test_what_is_no_report_is_none(tmp_path, text):
    (tmp_path / "failing-0.0").write_text(text)
    assert failure_report.take(str(tmp_path / "failing-0")) == []


@pytest.mark.parametrize("name", ["exit_code", "signal", "order"])
def test_a_report_whose_numbers_are_none_is_none(tmp_path, name):
    failure_report.write(str(tmp_path / "failing"), 0, WORD._replace(**{name: "1"}))
    assert failure_report.take(str(tmp_path / "failing")) == []


def test_a_report_on_a_disk_that_has_become_read_only_is_taken(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    failure_report.write(str(tmp_path / "failing"), 0, WORD)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert failure_report.take(str(tmp_path / "failing")) == [TakenReport(WORD, 0, [])]


@for_each(
    ("line", "lost"),
    [
        (GLOO, True),
        (f"[rank0]: {GLOO}", True),
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("[rank12]: torch.distributed.DistNetworkError: Failed to recv, got 0 bytes.", True),
        ("torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:94", True),
        ("torch.distributed.DistStoreError: wait timeout", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("BrokenPipeError", True),
        ("horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.", True),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x2 and 3x1)", False),
        ("RuntimeError: Connection closed by peer", False),
        ("ValueError: torch.distributed.DistBackendError is what we expect", False),
        ("torch.distributed.DistBackendErrors: x", False),
        ("serried.train.errors.StartError: ranks 1 of 4 have not come", False),
        ("  ConnectionResetError: quoted", False),
    ],
)
def test_a_lost_peer_is_known_by_the_type_of_the_exception(line, lost):
    assert failure_report.ends_with_a_lost_peer(["", line, "frame #21: main"]) is lost
    assert failure_report.comes_from_a_lost_peer([line.replace("[rank0]: ", "").replace("[rank12]: ", "")]) is lost


@for_each(
    ("chain", "lost"),
    [
        (["ValueError: bad batch", "ConnectionResetError: [Errno 104] Connection reset by peer"], False),
        (["ValueError: bad batch", "BrokenPipeError"], False),
        (["__main__.Mine: gone", GLOO], True),
        (["__main__.Mine: gone", "ValueError", "torch.distributed.DistBackendError: NCCL error"], True),
        (["KeyError: 'x'", "ValueError: bad batch"], False),
    ],
)
def test_a_connection_that_the_program_handled_is_not_the_cause_but_one_that_a_library_lost_is(chain, lost):
    assert failure_report.comes_from_a_lost_peer(chain) is lost


@for_each(
    ("lines", "lost"),
    [
        ([GLOO, "ValueError: bad batch", GLOO], False),
        (["rank 3 begins", GLOO, "ConnectionResetError: [Errno 104] Connection reset by peer"], True),
        (["rank 3 begins"], False),
    ],
)
def test_in_a_log_of_several_ranks_one_other_exception_counts(lines, lost):
    assert failure_report.shows_only_lost_peers(lines) is lost
