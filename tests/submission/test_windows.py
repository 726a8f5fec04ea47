import sys

import pytest

from serried import cli


def test_windows_is_refused_with_what_to_do_instead(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: Serried does not run on Windows itself\n\n"
        "hint: use it within WSL2: `wsl --install`, then install Serried there\n"
    )
