"""The file of a bench, and its one writer."""

import json
import os

import pytest

from serried.base.errors import UsageError
from serried.bench import store
from serried.bench.store import Bench, GridPoint, PointRun, benches, find, only_writer

pytestmark = pytest.mark.usefixtures("state_home")
ONE = GridPoint(1, 1, "agent", "single", batch=8)


def a_bench(name="b-abcd", called="train", created="2026-11-26T12:00:00Z"):
    entries = (PointRun(ONE, "k3f9q2", is_submitted=True), PointRun(ONE), PointRun(ONE, refusal="too large"))
    return Bench(name, called, created, {"directory": "/x"}, entries, "5", "stdout:x")


def test_a_bench_is_read_as_it_was_written(state_home):
    bench = a_bench().write()
    assert [path.name for path in (state_home / "serried" / "benches").iterdir()] == ["b-abcd.json"]
    assert (find("b-abcd"), bench.missing) == (bench, [1])


def test_a_bench_is_found_by_id_name_and_as_the_last():
    for name, called, day in (("b-aaaa", "train", 1), ("b-bbbb", "train", 2), ("b-cccc", "other", 3)):
        a_bench(name, called, f"2026-11-0{day}T00:00:00Z").write()
    (store.folder() / "b-torn.json").write_text('{"bench": "b-to')
    assert [find(word).id for word in ("b-aaaa", "train", "last")] == ["b-aaaa", "b-bbbb", "b-cccc"]
    assert [bench.id for bench in benches()] == ["b-cccc", "b-bbbb", "b-aaaa"]
    with pytest.raises(UsageError) as raised:
        find("b-aaab")
    assert (raised.value.message, raised.value.hint) == ("no bench is called `b-aaab`", "did you mean `b-aaaa`?")
    with pytest.raises(UsageError) as raised:
        find("../runs/x")
    assert raised.value.message == "no bench is called `../runs/x`"


def test_a_second_writer_is_refused_while_the_first_is_at_work():
    with only_writer("b-abcd"), pytest.raises(UsageError) as raised, only_writer("b-abcd"):
        pass
    expected = f"process {os.getpid()} on `{os.uname().nodename}` is submitting points of this bench"
    assert raised.value.message == expected
    with only_writer("b-abcd"), only_writer("b-other"):
        pass
    names = sorted(path.name for path in store.folder().iterdir())
    assert names == [".b-abcd.writer-2", ".b-other.writer-1"]


@pytest.mark.parametrize(("host", "is_free"), [(os.uname().nodename, True), ("login2", False)])
def test_the_place_of_a_killed_writer_is_free_on_this_machine_only(host, is_free):
    store.folder().mkdir(parents=True)
    owner = {"host": host, "pid": 999_999_999, "started": "17"}
    (store.folder() / ".b-abcd.writer-1").write_text(json.dumps(owner))
    if is_free:
        with only_writer("b-abcd"):
            pass
        return
    with pytest.raises(UsageError) as raised, only_writer("b-abcd"):
        pass
    path = store.folder() / ".b-abcd.writer-1"
    assert raised.value.hint == f"wait until it is done; if it has ended, delete `{path}`"
