"""Programs in the place of the ranks of two or three nodes on this machine, with torch and gloo."""

from __future__ import annotations

import sys

import pytest

import containing
from serried.schema.plan import Container, Environment

pytestmark = [pytest.mark.torch, pytest.mark.runs]

PYTHON = (sys.executable, "-c", "pass")
CHECKS = ["launch", "import-time", "matrix-product", "root-bandwidth", "disk-bandwidth", "all-reduce"]


def findings(run):
    """The id, level and nodes of each finding of part `pairs`."""
    entries = [entry for entry in run.events("checked") if entry["part"] == "pairs"]
    return [(it["id"], it["level"], tuple(it.get("hosts", ()))) for entry in entries for it in entry["findings"]]


def problems(run):
    return [(name, hosts) for name, level, hosts in findings(run) if level == "problem"]


@pytest.fixture
def with_torch(start, tmp_path):
    """A run that imports this torch instead."""

    def begin(program, **options):
        folder = tmp_path / "other"
        folder.mkdir()
        (folder / "torch.py").write_text(
            f"import os, sys, time\nis_faulty = os.environ['SERRIED_NODE'] == '1'\n{program}\n"
        )
        run = start(PYTHON, ranks=1, preflight=True, environment={"PYTHONPATH": str(folder)}, **options)
        run.wait()
        return run

    return begin


REAL = "sys.path.remove(os.path.dirname(__file__)); del sys.modules['torch']; import torch"


def test_two_nodes_measure_each_check_and_start_their_ranks(start):
    run = start(PYTHON, nodes=2, ranks=2, preflight=True)
    run.wait()
    assert list(dict.fromkeys(name for name, _, _ in findings(run))) == CHECKS
    assert problems(run) == []
    assert run.exit["state"] == "COMPLETED"


def test_programs_run_in_the_container_of_the_ranks(make_run, start, tmp_path):
    containing.path_with("ch-run")
    binds = (*containing.needed(), str(tmp_path))
    container = Container(str(containing.skeleton(tmp_path / "image")), "ch-run", local=False, binds=binds)
    (tmp_path / "torch.py").write_text(f"raise ModuleNotFoundError(open({containing.MARK!r}).read(), name='torch')")
    environment = Environment(env={"PYTHONPATH": str(tmp_path)})
    plan = make_run(PYTHON, nodes=2, ranks=1, preflight=True, container=container, environment=environment)
    run = start(PYTHON, plan=plan)
    run.wait()
    assert findings(run)[1:3] == [("container", "ok", ()), ("import-time", "not tested", ())]
    assert run.exit["state"] == "COMPLETED"


def test_one_node_measures_its_devices(start):
    run = start("true", nodes=1, ranks=2, preflight=True)
    run.wait()
    assert list(dict.fromkeys(name for name, _, _ in findings(run))) == CHECKS[:-1]
    assert run.exit["state"] == "COMPLETED"


def test_a_node_where_torch_hangs_is_named_and_what_needs_no_torch_is_measured(with_torch):
    program = "time.sleep(1000 if is_faulty else 0); raise ModuleNotFoundError('no torch', name='torch')"
    run = with_torch(program, nodes=3, seconds={"checks.probe.IMPORT_SECONDS": 10.0})
    assert problems(run) == [("import-time", ("fake2",))]
    assert {name for name, level, _ in findings(run) if level == "not tested"} == {"import-time", "all-reduce"}
    assert {"matrix-product", "root-bandwidth", "disk-bandwidth"} <= {name for name, _, _ in findings(run)}
    assert run.ending[2:] == ("check-failed", "fake2: check `import-time`: no answer within 10 s")


@pytest.mark.parametrize(
    ("end", "seen"),
    [
        ("sys.exit(3)", "SystemExit: 3"),
        ("os.kill(os.getpid(), 11)", "the program died: Fatal Python error: Segmentation fault"),
    ],
)
def test_torch_that_ends_its_program_is_named_with_how_it_ended(with_torch, end, seen):
    program = f"is_faulty and {end}; raise ModuleNotFoundError('no torch', name='torch')"
    run = with_torch(program, nodes=2)
    assert run.ending[2:] == ("check-failed", f"fake2: check `import-time`: {seen}")


def test_a_node_that_computes_wrong_values_is_named(with_torch):
    run = with_torch(f"{REAL}; torch.equal = torch.equal if not is_faulty else lambda *_: False", nodes=2)
    assert problems(run) == [("matrix-product", ("fake2",))]


def test_a_node_that_cannot_reach_others_is_named(with_torch):
    program = f"{REAL}; import torch.distributed as it; it.TCPStore = None if is_faulty else it.TCPStore"
    run = with_torch(program, nodes=3, seconds={"checks.pairs.TORCH_SECONDS": 5.0})
    assert problems(run) == [("all-reduce", ("fake2",))]


def test_a_slow_node_is_named(with_torch):
    slow = "one = torch.Tensor.__matmul__; torch.Tensor.__matmul__ = lambda a, b: [one(a, b) for _ in range(5)][0]"
    assert problems(with_torch(f"{REAL}\nif is_faulty: {slow}", nodes=3)) == [("matrix-product", ("fake2",))]
