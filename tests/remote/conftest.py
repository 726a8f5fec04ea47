from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import Sshd

from serried.remote import link


@pytest.fixture
def make_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sshd]]:
    """Starts login nodes, `fir` unless another alias is given, and has Serried use the `ssh` that knows them."""
    with contextlib.ExitStack() as stack:
        # The path of a socket is short.
        monkeypatch.setenv(
            "XDG_RUNTIME_DIR", stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir="/tmp"))
        )

        def make(host: str = "fir", **options: object) -> Sshd:
            far = stack.enter_context(Sshd(tmp_path, host, **options))
            monkeypatch.setenv("SERRIED_SSH", str(far.ssh))
            return far

        yield make


@pytest.fixture(scope="session")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the laptop. The archive for login nodes is packed once for all tests."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("laptop"))}


class Clock:
    """Wall clock of connections, which passes while they wait, as much as they wait."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.began = time.time()

    def time(self) -> float:
        return self.began + self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(link, "now", clock.time)
    monkeypatch.setattr(link, "sleep", clock.sleep)
    return clock
