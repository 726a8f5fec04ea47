from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import Sshd


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
