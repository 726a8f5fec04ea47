"""Commands typed on a laptop, for a cluster behind a real sshd: the lab's Slurm is on its login node."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sshd import Sshd, at_terminal

from command_line import here, start
from serried.lab.lab import Lab
from serried.records import index
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


def listed() -> list[tuple[str, str, str]]:
    return [(run["id"], run["state"], run["cluster"]) for run in json.loads(here("ps", "--json").stdout)["runs"]]


@pytest.mark.usefixtures("fir", "project")
def test_a_run_is_submitted_followed_and_listed_from_the_laptop(
    wait_until: Callable[..., object], tmp_path: Path
) -> None:
    submitted = here("submit", "--cluster", "beech", "--time", "5m", "--", "/usr/bin/python3", "train.py")
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()
    assert here("wait", "last").returncode == 0
    assert "hello from fir" in here("logs", run[:4]).stdout
    assert f"  source      {os.uname().nodename}:{tmp_path}/laptop/digits\n" in here("show", run).stdout
    wait_until(lambda: listed() == [(run, "COMPLETED", "beech")])
    fetched = here("fetch", run, "--to", str(tmp_path / "results"), "--json")
    assert (fetched.returncode, json.loads(fetched.stdout)["copied"]) == (0, ["out.txt"])
    assert (tmp_path / "results/out.txt").read_text() == "42"
    assert here("logs", "nosuch").stderr.startswith("error: unknown run: `nosuch`\n")


@pytest.mark.usefixtures("project")
def test_what_a_command_says_and_how_it_ends_are_those_of_the_login_node(fir: Sshd) -> None:
    refused = here("submit", "--cluster", "beech", "-p", "nosuch", "--", "/usr/bin/python3", "train.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ")
    hostile = "$(touch pwned) '\"\\\n%j; `id`\u00e9!"
    words = ("-n", "1", "--time", "5m", "--env", f"GREETING={hostile}", "--wait", "-y")
    failed = here(
        "submit", "--cluster", "beech", *words, "--", "/usr/bin/python3", "-c", f"raise SystemExit({hostile!r})"
    )
    assert failed.returncode == 1
    assert "FAILED" in failed.stderr
    assert "$(touch pwned)" in here("logs", "last").stdout
    assert not list(fir.home.rglob("pwned"))


@pytest.mark.usefixtures("fir")
def test_a_run_counts_on_its_own_cluster_and_under_one_name(project: Path, wait_until: Callable[..., object]) -> None:
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH -t 5\necho done\n")
    run = here("submit", "--cluster", "beech", "job.sh").stdout.strip()
    wait_until(lambda: listed() == [(run, "COMPLETED", "beech")])
    link.sign_in("elm", "fir")
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.write_text(f'{config.read_text()}[clusters.elm]\nlogin = "fir"\n')
    assert [each[:2] for each in listed()] == [(run, "COMPLETED")]
    assert here("show", run).returncode == 0
    words = ("--cluster", "local", "--gpus", "0", "--ranks", "1", "--time", "5m", "-y")
    for option in ("--after", "--resume"):
        refused = here("submit", *words, option, run, "--", "true")
        assert (refused.returncode, refused.stderr.startswith(f"error: run `{run}` is on cluster `")) == (2, True)
    assert here("wait", run, "nosuch").stderr.startswith("error: unknown run: `nosuch`")
    assert [each[:2] for each in listed()] == [(run, "COMPLETED")]  # nothing was submitted anywhere


def test_without_a_connection_a_list_shows_what_was_known_and_a_command_ends_with_4(
    fir: Sshd, project: Path, wait_until: Callable[..., object]
) -> None:
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH -t 5\necho done\n")
    run = here("submit", "--cluster", "beech", "job.sh").stdout.strip()
    wait_until(lambda: listed() == [(run, "COMPLETED", "beech")])
    link.sign_out("fir")
    fir.stop()
    known = here("ps")
    assert run in known.stdout
    assert "as of " in known.stdout
    assert known.stderr == ""  # nothing new is missing: the run has ended
    assert json.loads(here("ps", "--json").stdout)["runs"][0]["stale_since"] is not None
    done = here("show", run)
    assert (done.returncode, done.stdout) == (4, "")
    assert "hint: " in done.stderr
    bench = here("bench", "scaling", "--cluster", "beech", "--nodes", "1,2", "--", "true")
    assert (bench.returncode, bench.stderr) == (2, "error: `serried bench` works only on a login node of `beech`\n")
    board = here("track", "tensorboard", run)
    error = "error: `serried track tensorboard` works only on a login node of `beech`\n"
    assert (board.returncode, board.stderr.partition("\n")[0] + "\n") == (2, error)


@pytest.mark.usefixtures("fir", "project")
def test_a_shell_over_there_is_on_this_terminal_and_asks_as_the_login_node_does() -> None:
    serried = (sys.executable, "-m", "serried")
    typed = ("# ", "tty >/dev/null && echo shell of $GREETING; exit 3")
    status, shown = at_terminal((*serried, "shell", "--cluster", "beech", "--time", "5m"), typed)
    assert (status, "shell of fir\n" in shown) == (3, True), shown
    run = here("submit", "--cluster", "beech", "--time", "5m", "--", "sleep", "300").stdout.strip()
    index.remember(index.last_answer("beech")._replace(runs=[]))  # it was submitted on the login node, so to speak
    status, shown = at_terminal((*serried, "stop", "last"), ("[y/N]", "y"))
    assert (status, f"stop {run} " in shown, "CANCELLED" in shown) == (0, True, True), shown


@pytest.mark.usefixtures("fir")
def test_data_of_the_project_is_where_the_program_expects_it(project: Path) -> None:
    (project / "data/raw").mkdir(parents=True)
    (project / "data/raw/x").write_text("four")
    (project / ".gitignore").write_text("data\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "train.py").write_text("import os\nprint(open('data/raw/x').read(), oct(os.stat('data/raw').st_mode))\n")
    command = "/usr/bin/python3 train.py"
    text = f'[experiments.a]\ncommand = "{command}"\ndata.send = "data"\nresources.time = "5m"\n'
    (project / "serried.toml").write_text(text)
    done = here("submit", "--cluster", "beech", "--wait")
    assert done.returncode == 0, done.stderr
    assert "four 0o40500" in here("logs", "last").stdout
    assert here("rerun", "last", "--wait").returncode == 0
    assert "four 0o40500" in here("logs", "last").stdout
    (project / "data/raw/x").write_text("five")
    assert here("rerun", "last", "--new-code", "--wait").returncode == 0
    assert "five 0o40500" in here("logs", "last").stdout


@pytest.mark.usefixtures("fir")
def test_results_come_while_the_program_writes_them(
    project: Path, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    (project / "train.py").write_text(
        "import os, sys, time\n"
        "with open('log.csv', 'w') as log:\n"
        "    print('epoch,loss\\n1,', end='', file=log, flush=True)\n"
        "    open('log.ready.tmp', 'w')\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
        "    print('0.5', file=log)\n"
        "open('model.bin', 'w').write('x')\n"
    )
    go = tmp_path / "go"
    words = ("submit", "--cluster", "beech", "--time", "5m", "--", "/usr/bin/python3", "train.py", str(go))
    run = here(*words).stdout.strip()
    listing = ("fetch", run, "--to", str(tmp_path / "x"), "--dry-run", "--json")
    wait_until(lambda: "log.ready.tmp" in here(*listing).stdout)
    following = start("fetch", run, "-f", "--to", "results", "--json", directory=project, environ=os.environ)
    wait_until((project / "results/log.csv").exists)
    assert (project / "results/log.csv").read_text() == "epoch,loss\n"
    go.touch()
    out, err = following.communicate(600)
    assert following.returncode == 0, err
    assert json.loads(out)["copied"] == ["log.csv", "log.ready.tmp", "model.bin"]
    assert (project / "results/log.csv").read_text() == "epoch,loss\n1,0.5\n"


@pytest.mark.usefixtures("fir", "project")
def test_a_run_over_there_is_watched_on_this_terminal() -> None:
    serried = (sys.executable, "-m", "serried", "watch", "last")
    program = "import time\nprint('it waits', flush=True)\nwhile True: time.sleep(1)"
    run = here("submit", "--cluster", "beech", "--time", "5m", "--", "/usr/bin/python3", "-c", program).stdout.strip()
    status, shown = at_terminal(serried, ("it waits", "\x03"))
    assert (status, f"{run} python3 RUNNING" in shown, "every 5s, Ctrl-C ends" in shown) == (0, True, True), shown
    assert here("stop", run, "-y").returncode == 0
    here("wait", run)
    status, shown = at_terminal(serried)
    assert (status, f"{run} python3 CANCELLED" in shown, "Ctrl-C ends" in shown) == (0, True, False), shown
    no_terminal = here("watch", run)
    assert (no_terminal.returncode, no_terminal.stderr) == (
        2,
        "error: `serried watch` needs a terminal\n\nhint: serried watch --once prints the page once\n",
    )


@pytest.mark.usefixtures("fir")
def test_a_rerun_gets_the_secrets_of_here_and_a_profile_is_learnt_over_there(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'environment.secrets = ["GREETING"]\nresources = {time = "5m", ranks = 1, gpus = 0}\ncluster = "beech"\n'
    (project / "serried.toml").write_text(f'[experiments.train]\ncommand = "/usr/bin/python3 train.py"\n{text}')
    for words, greeting in ((("submit",), "one"), (("rerun", "last"), "two")):
        monkeypatch.setenv("GREETING", greeting)
        submitted = here(*words, "-y", "--wait")
        assert submitted.returncode == 0, submitted.stderr
        assert f"hello from {greeting}\n" in here("logs", "last").stdout
    assert "compared" in here("clusters", "check", "beech").stderr
    checks = {one["id"]: one for one in json.loads(here("doctor", "--cluster", "beech", "--json").stdout)["checks"]}
    assert (checks["scheduler"]["level"], checks["root-on-nodes"]["level"]) == ("ok", "ok"), checks
    for words in (("--cluster", "beech", "--nodes", "1"), ("--like", "last")):
        of_nodes = here("doctor", *words, "--json")
        assert of_nodes.returncode == 0, of_nodes.stderr
        assert "disk" in {one["id"] for one in json.loads(of_nodes.stdout)["checks"]}
    learnt = here("clusters", "learn", "beech", "--save")
    saved = Path(os.environ["XDG_CONFIG_HOME"], "serried", "clusters", "beech.toml")
    assert (learnt.returncode, learnt.stdout) == (0, f"{saved}\n"), learnt.stderr
    assert "[partitions" in saved.read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user: sudo pytest")
def test_runs_that_others_share_over_there_are_listed_and_read_from_here(
    fir: Sshd, project: Path, tmp_path: Path
) -> None:
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH -t 5\necho done\n")
    root = fir.home / "runs"
    root.mkdir(exist_ok=True)
    root.chmod(0o3770)
    run = here("submit", "--cluster", "beech", "job.sh", "--wait").stdout.strip()
    (own,) = root.glob(f"*/*/*/{run}")
    theirs = shutil.copytree(own, root / "54321/digits/train/aaaaaa", symlinks=True)
    (theirs / "plan.json").write_text((own / "plan.json").read_text().replace(run, "aaaaaa"))
    (theirs / "results").mkdir(exist_ok=True)
    (theirs / "results/a.csv").write_text("1,2\n")
    subprocess.run(["chown", "-R", "54321:54321", root / "54321"], check=True)
    done = here("ps", "--user", "54321", "--json")
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)["runs"]
    assert [(each["id"], each["user"], each["cluster"], each["state"]) for each in shared] == [
        ("aaaaaa", "54321", "beech", "COMPLETED")
    ]
    assert "done" in here("logs", "aaaaaa").stdout
    assert here("fetch", "aaaaaa", "--to", str(tmp_path / "copy")).returncode == 0
    assert (tmp_path / "copy/a.csv").read_text() == "1,2\n"
    assert "works only on your own runs" in here("stop", "aaaaaa", "--yes").stderr
    assert [each[0] for each in listed()] == [run]
    assert json.loads(here("show", "last", "--json").stdout)["runs"][0]["id"] == run
