"""Commands typed on a laptop, for a cluster behind a real sshd: the lab's Slurm is on its login node."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sshd import Sshd

from command_line import here
from serried.lab.lab import Lab
from serried.remote import link

pytestmark = [pytest.mark.slurm, pytest.mark.runs]
SCRIPT = "import os\nprint('hello from', os.environ['GREETING'])\nopen('out.txt', 'w').write('42')\n"


def profile(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "laptop" / "digits"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fir(make_sshd: Callable[..., Sshd], lab: Lab) -> Sshd:
    """A login node whose login shell finds the lab, known on the laptop as the cluster `beech`."""
    far = make_sshd("fir")
    (far.home / ".bash_profile").write_text(profile({**lab.variables, "GREETING": "fir"}))
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[clusters.beech]\nlogin = "fir"\nroot = "{far.home}/runs"\nmatch.hostname = ["fir-login*"]\n')
    link.sign_in("beech", "fir")
    return far


@pytest.mark.usefixtures("fir", "project")
def test_a_run_is_submitted_followed_and_listed_from_the_laptop() -> None:
    submitted = here("submit", "--cluster", "beech", "--time", "5m", "--", "/usr/bin/python3", "train.py")
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()
    assert run, submitted.stderr
    assert here("wait", run).returncode == 0
    assert "hello from fir" in here("logs", run).stdout
    listed = json.loads(here("ps", "--json").stdout)["runs"]
    assert [(one["id"], one["state"], one["cluster"]) for one in listed] == [(run, "COMPLETED", "beech")]
