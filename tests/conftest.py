"""What every test stands on: an environment of its own, a lab with real Slurm, waiting without sleeping."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import train_ranks
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

import command_line
from serried import lab as labs
from serried.base import processes
from serried.base.errors import MissingProgramError
from serried.lab import Lab
from waiting import until

FOREIGN = (
    "SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "PBS_", "SERRIED_", "XDG_",
    "GIT_", "CUDA_", "NVIDIA_", "TORCHELASTIC_", "OMP_", "WANDB_", "MLFLOW_", "HYDRA_",
)  # fmt: skip
FOREIGN_NAMES = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COMP_WORDS",
    "PYTHONDONTWRITEBYTECODE", "NETRC", "SSH_CONNECTION",
}  # fmt: skip

settings.register_profile("sure", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sure")  # the same examples each time, on a machine however slow

gc.disable()  # until all tests are collected: what that makes stays to the end

LAB_ROOT = Path(f"/tmp/serried-test-{os.getpid()}-{secrets.token_hex(3)}")
"""Where labs go that tests start by command: never among those of the person who runs the tests."""

TESTS = Path(__file__).parent
WITH_RUNS = {"endtoend", "examples", "compat", "faults", "contract"}
"""Folders whose tests start whole runs or jobs; others do so by the fixture `make_run`."""

WHOLE_FILE = re.compile(r"^pytestmark = (\[[^]]*\]|.*)", re.MULTILINE)

PATIENT = {"MessageTimeout": "100", "SlurmdTimeout": "300", "KillWait": "20", "MinJobAge": "3600"}
"""Daemons and jobs may be slow where tests keep the machine busy, and what has ended is known to the end of a test."""


_SHARED_LABS: list[Lab] = []
_CRASHED: list[str] = []
"""Shared labs that ended after a daemon had crashed in them: with the last test of a worker, its lab ends too."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a failed test once if a daemon of its Slurm has crashed, and else as often as `--reruns` says.

    The slurmd of Slurm 22.05 sometimes corrupts its own memory when several jobs start at once, and aborts.
    """
    if not item.get_closest_marker("slurm") and not item.get_closest_marker("runs"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    reruns = item.config.getoption("reruns", None) or 0
    for _ in range(max(1, reruns)):
        if not any(report.failed for report in reports) or not (_restart_crashed() or reruns):
            break
        for report in reports:
            report.outcome = "rerun" if report.failed else report.outcome  # type: ignore[assignment]
            item.ihook.pytest_runtest_logreport(report=report)
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _restart_crashed() -> bool:
    """Restart the daemons of shared labs that have dumped core; whether there were any."""
    found = bool(_CRASHED)
    _CRASHED.clear()
    for lab in _SHARED_LABS:
        cores = list(lab.spec.directory.glob("core*"))
        crashed = [name for name, runs in lab.status().daemons.items() if not runs] if cores else []
        for name in crashed:
            found = True
            lab.restart(name)
        for core in cores:
            core.unlink()
    return found


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of which every test is left out: their imports, such as torch's, cost more than many tests."""
    expression = config.option.markexpr
    if not re.fullmatch(r"not \w+( and not \w+)*", expression):
        return None
    if collection_path.is_dir():
        marks = {"runs"} if collection_path.name in WITH_RUNS else set()
    elif not collection_path.match("test_*.py"):
        return None
    else:
        marked = WHOLE_FILE.search(collection_path.read_text(encoding="utf-8"))
        marks = set(re.findall(r"pytest\.mark\.(\w+)", marked[0])) if marked else set()
    return True if marks & set(re.findall(r"not (\w+)", expression)) else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if {"lab", "lab_with_accounting", "make_lab"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slurm)
        if set(item.path.relative_to(TESTS).parts) & WITH_RUNS or "make_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.runs)
    if importlib.util.find_spec("horovod") is None:
        _leave_out(config, items, "horovod", "needs Horovod: make horovod")
    if not os.environ.get("NANOGPT"):
        _leave_out(config, items, "nanogpt", "needs a checkout of nanoGPT, whose path is in NANOGPT")


def _leave_out(config: pytest.Config, items: list[pytest.Item], marker: str, reason: str) -> None:
    """Skipped, saying what is missing. Not so in CI, where a skip is a failure and the component is not to be had."""
    without = [item for item in items if item.get_closest_marker(marker)]
    if os.environ.get("CI") == "true":
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)
    for item in without:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """`make test &` in a script ignores Ctrl-C, and `nohup` a closed terminal; so would all that tests start."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees, or writes to, the home, the settings or the Slurm of whoever runs it, nor another test's mask."""
    mask = os.umask(0o022)
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in FOREIGN_NAMES:
            monkeypatch.delenv(name)
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")  # tests that install packages need the proxy
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, ",".join(filter(None, ("127.0.0.1,localhost", others))))
    # A version manager's `python` is a shell script that takes longer than many a test.
    monkeypatch.setenv("PATH", f"{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for kind in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(home / "site"))
    monkeypatch.setenv("SERRIED_LAB_ROOT", str(LAB_ROOT))
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")
    yield
    os.umask(mask)


@pytest.fixture
def state_home(_own_environment: None) -> Path:
    """Where this test's records go; not made yet."""
    return Path(os.environ["XDG_STATE_HOME"])


@pytest.fixture(scope="session")
def _shared_lab() -> Iterator[Lab]:
    yield from _lab_for_the_session(f"test-{os.getpid()}")


@pytest.fixture(scope="session")
def _shared_lab_with_accounting() -> Iterator[Lab]:
    yield from _lab_for_the_session(f"test-acct-{os.getpid()}", accounting=True)


@pytest.fixture
def lab(_shared_lab: Lab) -> Lab:
    """A Slurm of four nodes with four GPUs each, all idle, without accounting; one for each pytest-xdist worker."""
    return _emptied(_shared_lab)


@pytest.fixture
def lab_with_accounting(_shared_lab_with_accounting: Lab) -> Lab:
    """The same, with sacct."""
    return _emptied(_shared_lab_with_accounting)


@pytest.fixture
def in_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The lab, with this process's own environment pointed at it."""
    for name, value in lab.variables.items():
        monkeypatch.setenv(name, value)
    return lab


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Starts labs for one test that wants its own: `make_lab(nodes=2, settings={"SlurmdTimeout": "10"})`."""
    made: list[Lab] = []

    def make(**options: Any) -> Lab:
        made.append(start_or_skip(f"own-{os.getpid()}-{len(made)}", **options))
        return made[-1]

    yield make
    for each in made:
        _take_down(each)


FAKES = Path(__file__).parent / "fakes" / "bin"


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sbatch and its kin are fakes from now on; call it with the modes of tests/fakes/fake_slurm.py to break them."""
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM_STATE", str(tmp_path / "slurm"))

    def behave(*modes: str) -> None:
        monkeypatch.setenv("FAKE_SLURM_MODE", ",".join(modes))

    return behave


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """See `waiting.until`."""
    return until


@pytest.fixture(scope="session")
def marked_processes() -> Callable[[str], list[int]]:
    """The pids that carry a SERRIED_MARK which starts with `mark`: a run id finds all that the run has left."""

    def marked(mark: str) -> list[int]:
        found = processes.with_environment(lambda variables: variables.get("SERRIED_MARK", "").startswith(mark))
        return sorted(process.pid for process in found)

    return marked


@pytest.fixture
def torch_python(_own_environment: None) -> tuple[str, ...]:
    """The words that run a script as `python` does, forked from a process that has imported torch."""
    words: tuple[str, ...] = train_ranks.forker().python
    return words


@pytest.fixture(scope="session", autouse=True)
def _forkers_end() -> Iterator[None]:
    yield
    train_ranks.end()
    command_line.end()


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not LAB_ROOT.exists(), f"a test has left a lab in {LAB_ROOT}"


def start_or_skip(name: str, **options: Any) -> Lab:
    """A lab; where Slurm is missing the test is skipped, and with CI=true it fails."""
    try:
        return labs.up(name, **{"temporary": True, **options})
    except MissingProgramError as error:
        reason = f"{error.message}; {error.hint}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _emptied(lab: Lab) -> Lab:
    """The lab without what earlier tests have left, or a job of theirs that is still being cleared away."""

    def is_idle() -> bool:
        queue = lab.run("squeue", "--noheader")
        nodes = lab.status().nodes
        return (queue.status, queue.stdout) == (0, "") and set(nodes.values()) == {"idle"}

    if not is_idle():
        lab.run("scancel", f"--user={os.getuid()}")
        until(is_idle, what="the lab's nodes are idle")
    return lab


def _lab_for_the_session(name: str, **options: Any) -> Iterator[Lab]:
    # Where people's labs are: a lab that a killed session has left goes with the next `lab up` of anybody here.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SERRIED_LAB_ROOT", raising=False)
        made = start_or_skip(name, settings=PATIENT, **options)
    _SHARED_LABS.append(made)
    yield made
    _SHARED_LABS.remove(made)
    if list(made.spec.directory.glob("core*")):
        _CRASHED.append(made.name)
    _take_down(made)


def _take_down(made: Lab) -> None:
    made.down()
    assert (made.leftovers(), made.spec.directory.exists()) == ([], False)
