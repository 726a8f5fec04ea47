"""The Python API on a laptop, for a cluster behind a real sshd: the lab's Slurm is on its login node."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from local_shell import LoginNode
from sshd import Sshd
from test_resuming import CutNode

import pythons
import serried
from command_line import here
from serried import api
from serried.api import elsewhere
from serried.base.errors import Elsewhere, NotConnected, RunFailed, RunNotFoundError, SerriedWarning, UsageError
from serried.lab.lab import Lab
from serried.records import index
from serried.remote import link, relay
from serried.remote.client import RemoteSession

with_lab = [pytest.mark.slurm, pytest.mark.runs]
PYTHON = "/usr/bin/python3"
SCRIPT = """\
import os, sys
print('hello from', os.environ['GREETING'], *sys.argv[1:], flush=True)
open('out.txt', 'w').write('42')
if 'wait' in sys.argv:
    import time
    time.sleep(600)
sys.exit('fail' in sys.argv)
"""
MODULE = """\
import os

def half(value):
    if value < 0:
        raise ValueError(f"no half of {value}")
    return value / 2, os.environ["GREETING"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "laptop" / "digits"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "lib" / "halves_of_the_laptop.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder / "lib")
    monkeypatch.chdir(folder)
    return folder


def known_as(cluster: str, far: Sshd) -> None:
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    with config.open("a") as file:
        file.write(f'[clusters.{cluster}]\nlogin = "{far.host}"\nroot = "{far.home}/runs"\n')
        file.write(f'match.hostname = ["{far.host}-login*"]\n')
    link.sign_in(cluster, far.host)


@pytest.fixture
def make_cluster(
    make_sshd: Callable[..., Sshd], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Sshd]]:
    monkeypatch.setattr(relay, "_GLANCE_SECONDS", 60.0)  # this machine may be busy

    def make(cluster: str, host: str) -> Sshd:
        far = make_sshd(host)
        variables = {**lab.variables, "GREETING": host}
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        (far.home / ".bash_profile").write_text("".join(lines))
        known_as(cluster, far)
        return far

    yield make
    elsewhere.close()


@pytest.fixture
def fir(make_cluster: Callable[[str, str], Sshd]) -> Sshd:
    return make_cluster("beech", "fir")


def submit(*words: str, **options: object) -> api.Run:
    return serried.submit([PYTHON, "train.py", *words], cluster="beech", time="5m", **options)


def test_each_member_of_a_run_is_asked_over_there() -> None:
    public = {name for name in vars(api.Run) if not name.startswith("_")}
    inherited = {"progress", "result", "results"}  # by other members
    assert public - vars(elsewhere.FarRun).keys() == inherited
    for name in public - inherited - {"id", "name"}:
        theirs, ours = inspect.getattr_static(elsewhere.FarRun, name), inspect.getattr_static(api.Run, name)
        assert inspect.isfunction(theirs) == inspect.isfunction(ours)
        if inspect.isfunction(ours):
            assert inspect.signature(theirs) == inspect.signature(ours)


class TestOnSlurm:
    pytestmark = with_lab

    @pytest.mark.usefixtures("fir", "project")
    def test_a_run_is_submitted_waited_for_and_read(self) -> None:
        run = submit("a b", name="first")
        assert run.wait(900) is serried.State.COMPLETED
        assert run.logs() == run.logs(rank=0, attempt=1) == "hello from fir a b\n"
        assert (run.name, run.state, run.exit_code, run.done, run.progress) == ("first", "COMPLETED", 0, True, None)
        assert (repr(run), run.metrics(), run.tasks) == (f"<serried.Run {run.id} on beech>", [], [])
        assert type(run.directory) is PurePosixPath
        (made,) = run.outputs()
        assert (made.path, type(made.file), made.bytes) == (Path("out.txt"), PurePosixPath, 2)
        assert str(made.file).startswith(str(run.directory))
        assert run.job == run.to_json()["job"]
        with pytest.raises(UsageError, match="no rank 7"):
            run.logs(rank=7)
        with pytest.raises(UsageError, match="runs a command, not a function"):
            run.result()

        assert serried.runs() == [run] == [serried.find("last")]
        index.remember(index.last_answer("beech")._replace(runs=[]))  # as if it had been submitted on the login node
        assert [serried.find(word) for word in (run.id[:4], "first", run.job, "last")] == [run] * 4
        with pytest.raises(RunNotFoundError, match="unknown run: `nosuch`"):
            serried.find("nosuch")

    @pytest.mark.usefixtures("fir", "project")
    def test_what_runs_can_be_stopped_and_submitted_again(self, wait_until: Callable[..., object]) -> None:
        run = submit("wait")
        wait_until(run.logs)
        with pytest.raises(TimeoutError, match=f"run {run.id} did not end within 0.1 s"):
            run.wait(0.1)
        assert run.exit_code is None
        assert wait_until(lambda: run.progress)["ranks"] == 1
        with pytest.raises(ValueError, match="mutually exclusive"):
            run.stop(save=True, now=True)
        run.stop()
        assert run.wait(900) == "CANCELLED"
        with pytest.raises(RunFailed, match=f"run {run.id} ended CANCELLED"):
            run.wait(check=True)
        again = run.rerun(name="again")
        assert (again.name, again.to_json()["rerun_of"]) == ("again", run.id)
        again.stop(now=True)
        assert again.wait(900) == "CANCELLED"
        assert serried.runs() == [again, run]

    @pytest.mark.usefixtures("fir", "project")
    def test_warnings_come_before_anything_is_submitted(self) -> None:
        with pytest.raises(UsageError, match=r"no shell expands `\$HOME`") as refused:
            submit("$HOME")
        assert (refused.value.code, refused.value.hint) == ("shell-syntax", api.CONSENT_HINT)
        with pytest.raises(SerriedWarning, match=r"no shell expands `\$HOME`"):  # as all are in these tests
            submit("$HOME", yes=True)
        assert serried.runs() == []
        with pytest.warns(SerriedWarning, match=r"no shell expands `\$HOME`") as told:
            run = submit("$HOME", yes=True)
        assert [warning.filename for warning in told] == [__file__]
        assert (run.wait(900), run.logs()) == ("COMPLETED", "hello from fir $HOME\n")

    @pytest.mark.usefixtures("fir")
    def test_settings_secrets_and_a_script_go_along(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "$(touch pwned) 'secret'")
        (project / "train.py").write_text("import os, sys\nprint(os.environ['HF_TOKEN'], sys.argv[1:])\n")
        settings = {"environment.secrets": ["HF_TOKEN"]}
        run = submit("{config.lr}", "{task}", settings=settings, config={"lr": "1 e"}, array=[3, 5])
        assert run.wait(900) == "COMPLETED"
        assert [task.id for task in run.tasks] == [f"{run.id}/3", f"{run.id}/5"]
        assert run.tasks[1].logs() == "$(touch pwned) 'secret' ['1 e', '5']\n"
        assert serried.find(f"{run.id}/5") == run.tasks[1]
        with pytest.raises(UsageError, match="is an array"):
            run.logs()

        (project / "job.sh").write_text("#!/bin/bash\n#SBATCH -t 5\necho $PWD $1\n")
        scripted = serried.submit(script="job.sh", arguments=["x y"], cluster="beech", after=run)
        assert scripted.wait(900) == "COMPLETED"
        assert scripted.logs().endswith("/source x y\n")
        assert scripted.to_json()["after"] == [run.id]

        refused = {"settings": {"project.snapshot": False}}, {"settings": {"limit.grace": object()}}, {"mem": "8X"}
        for options in refused:
            with pytest.raises(UsageError):
                submit(**options)
        with pytest.raises(UsageError, match=f"run `{run.id}` is on cluster `beech`") as caught:
            serried.submit("true", cluster="local", after=run)
        assert caught.value.hint == '`cluster="beech"` submits where that run is'
        assert serried.runs() == [scripted, run]

    @pytest.mark.usefixtures("fir", "project")
    def test_results_and_exceptions_of_functions_come_back(self) -> None:
        from halves_of_the_laptop import half

        one = serried.submit(half, args=[8], cluster="beech", time="5m")
        many = serried.map(half, [1, -1], cluster="beech", time="5m")
        named = serried.submit(len, args=["cloudpickle"], cluster="beech", time="5m")
        assert (one.name, one.result(900), named.result(900)) == ("half", (4.0, "fir"), 11)
        value, error = many.results(900, return_exceptions=True)
        assert (value, type(error), str(error)) == ((0.5, "fir"), ValueError, "no half of -1")
        assert error.__notes__[0].startswith(f"in rank 0 of run {many.id}/1:\nTraceback")

    @pytest.mark.usefixtures("fir", "project")
    def test_a_function_with_its_code_needs_the_same_python_over_there(self, tmp_path: Path) -> None:
        pytest.importorskip("cloudpickle")
        factor = 3
        lacks_it = ({}, r"the function needs `cloudpickle`, and `.*python.*` does not have it")
        cases = [lacks_it] if subprocess.run(["python3.11", "-c", "import cloudpickle"], check=False).returncode else []
        others = {path.rpartition("/versions/3.")[2].partition(".")[0]: path for path in pythons.interpreters()}
        others.pop(str(sys.version_info.minor), None)
        for minor in sorted(set(others) & {"9", "12"}):
            venv = tmp_path / f"venv{minor}"
            subprocess.run([others[minor], "-m", "venv", "--without-pip", venv], check=True)
            message = rf"the function needs Python 3\.{sys.version_info.minor}, as here, and `{venv}` has 3\.{minor}"
            cases.append(({"environment.venv": str(venv)}, message))
        for settings, message in cases:
            with pytest.raises(UsageError, match=message) as caught:
                serried.submit(lambda x: x * factor, args=[14], cluster="beech", time="5m", settings=settings)
            assert "over there with Python" in str(caught.value.hint)
        assert serried.runs() == []
        same = {"environment.venv": sys.prefix}
        run = serried.submit(lambda x: x * factor, args=[14], cluster="beech", time="5m", settings=same)
        assert run.result(900) == 42

    @pytest.mark.usefixtures("project", "clock")
    def test_without_a_connection_runs_are_as_they_were_known(self, fir: Sshd) -> None:
        run = submit()
        assert run.wait(900) == "COMPLETED"
        assert serried.runs().to_json()[0]["stale_since"] is None
        fir.cut()
        assert run.state == "COMPLETED"  # in a new connection
        elsewhere.close()
        link.sign_out("fir")
        fir.stop()
        with pytest.warns(SerriedWarning, match="its runs are those of "):
            found = serried.runs()
        assert found == [run]
        with pytest.warns(SerriedWarning, match="its runs are those of "):
            (row,) = found.to_json()
        assert (row["id"], row["state"], row["cluster"], row["stale_since"] is None) == (
            run.id, "COMPLETED", "beech", False,
        )  # fmt: skip
        with pytest.warns(SerriedWarning, match="its runs are those of "):
            assert f"<td>{run.id}</td>" in found._repr_html_()
        for ask in (lambda: run.state, run.logs, run.stop, submit, lambda: serried.find(run.id)):
            with pytest.raises(NotConnected):
                ask()


@pytest.mark.slurm
@pytest.mark.runs
@pytest.mark.usefixtures("project")
def test_wait_and_stop_take_runs_of_several_clusters(make_cluster: Callable[[str, str], Sshd]) -> None:
    make_cluster("beech", "fir")
    elm = make_cluster("elm", "yew")
    ended, failed = submit(), submit("fail")
    local = serried.submit([PYTHON, "-c", "pass"], cluster="local", ranks=1)
    other, long = (serried.submit([PYTHON, "train.py", word], cluster="elm", time="5m") for word in ("ok", "wait"))
    waited = here("wait", "--json", ended.id, local.id, other.id)
    assert (waited.returncode, waited.stderr) == (0, "")
    found = {run["id"]: run["state"] for run in json.loads(waited.stdout)["runs"]}
    assert found == dict.fromkeys((ended.id, local.id, other.id), "COMPLETED")
    bad = here("wait", failed.id, other.id, local.id)
    assert bad.returncode == 1
    assert all(f"{run.id} " in bad.stderr for run in (failed, other, local))
    late = here("wait", "--timeout", "1s", long.id, ended.id)
    assert (late.returncode, f"{long.id} did not end within 1s" in late.stderr) == (124, True)
    assert here("clean", "-y", long.id, ended.id).stderr == (
        "error: the runs are on `elm` and `beech`\n\nhint: name the runs of one cluster at a time\n"
    )

    refused = here("stop", ended.id, long.id, long.id, local.id)  # without a terminal to ask on
    assert refused.stderr.partition(f"error: refusing to stop {long.id} (train, ")[2].partition(")")[2] == (
        " without confirmation\n\nhint: pass `--yes`\n"
    )
    assert here("stop", "-y", long.id, ended.id, "nosuch").returncode == 2
    assert long.state in ("PENDING", "RUNNING")
    assert here("stop", "-y", long.id, ended.id, local.id).returncode == 0
    assert long.wait(900) == "CANCELLED"

    alive = submit("wait")
    elsewhere.close()
    link.sign_out("yew")
    elm.stop()
    assert here("stop", "-y", alive.id, other.id).returncode == 4
    assert alive.state in ("PENDING", "RUNNING")
    alive.stop(now=True)
    lost = here("wait", other.id, ended.id)
    assert (lost.returncode, ended.id in lost.stderr) == (4, False), lost.stderr  # before it waits
    assert here("stop", "-y", other.id, ended.id).returncode == 4


@pytest.fixture
def cut_node(tmp_path: Path, laptop: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[CutNode]:
    """A login node without ssh and without a scheduler: jobs run on this machine."""
    node = CutNode(tmp_path / "ada")
    monkeypatch.setattr(
        relay,
        "session_with",
        lambda cluster: RemoteSession(cluster, "fir", connect=node.connect, environ=laptop, pause=lambda _: None),
    )
    yield node
    elsewhere.close()


@pytest.mark.runs
@pytest.mark.parametrize("direction", ["sent", "received"])
def test_one_run_is_submitted_wherever_the_connection_is_cut(direction: str, cut_node: CutNode, project: Path) -> None:
    request = {"command": ["true"], "cluster": "local", "overrides": {"resources.ranks": 1}, "is_sent": True}

    def send() -> api.Run:
        error = Elsewhere("local", "", needs_project=True, names_cluster=True)
        return elsewhere.submit(error, {"request": request}, project, yes=True)

    first = send()
    elsewhere.close()
    whole = cut_node.links[-1].counts[direction == "received"]
    runs = {first.id}
    records = cut_node.home / ".local/state/serried/runs"
    assert [each.name for each in records.iterdir() if each.is_dir()] == [first.id]
    for cut in range(whole // 7, whole, whole // 7):
        cut_node.limits.append({direction: cut})
        with contextlib.suppress(NotConnected):  # before anything was submitted
            runs.add(send().id)
        elsewhere.close()
        assert {each.name for each in records.iterdir() if each.is_dir()} == runs, f"{cut} bytes {direction}"


def test_nothing_but_an_answer_is_taken_from_a_login_node(
    tmp_path: Path, laptop: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LoginNode(tmp_path / "ada")
    session = RemoteSession("fir", "fir", connect=node.connect, environ=laptop)
    monkeypatch.setattr(relay, "session_with", lambda _cluster: session)
    monkeypatch.setattr(elsewhere, "_sessions", {})
    told: list[object] = []

    def hears(answer: object) -> None:
        told[:] = [json.loads(json.dumps(answer))]

    run = elsewhere.FarRun("fir", "k3f9q2", "first")
    with session:
        with pytest.raises(RunNotFoundError, match="`k3f9q2`"):
            run.state  # noqa: B018
        monkeypatch.setattr(session, "ask", lambda *_, **__: told[0])
        for wrong in ({}, {"warnings": 1, "value": 2, "raised": None}, {"warnings": [], "value": 1, "raised": ["os"]}):
            hears(wrong)
            with pytest.raises(serried.SerriedError, match="what `fir` sent is not an answer"):
                run.state  # noqa: B018
        hears({"warnings": ["slow disk"], "value": "RUNNING", "raised": None})
        for member in (lambda: run.state, lambda: run.wait()):  # noqa: PLW0108 - from this file
            with pytest.warns(SerriedWarning, match="slow disk") as warned:
                assert member() == "RUNNING"
            assert warned[0].filename == __file__
        lies = {
            "no state": (lambda: run.state, run.wait),
            "yes": (lambda: run.done, lambda: run.exit_code, lambda: run.tasks, run.to_json, run.metrics, run.outputs),
            17: (lambda: run.directory, lambda: run.job, lambda: run.progress, run.logs, lambda: serried.find("first")),
            ("../../x", "first"): (lambda: run.tasks, lambda: serried.find("first"), serried.RunList([run]).to_json),
        }
        answer = index.ClusterRuns("fir", 1.0, [index.RunElsewhere("k3f9q2", "first", "", "", 1.0, None, (), {}, ())])
        index.remember(answer)
        for value, members in lies.items():
            hears({"warnings": [], "value": value, "raised": None})
            for member in members:
                with pytest.raises(serried.SerriedError, match="what `fir` sent is not an answer"):
                    member()
        monkeypatch.setattr(relay, "_hosts", lambda: {"fir": "fir"})
        for row in ({"id": "../../x"}, {"created": "now"}, {"name": 1}, {"jobs": [1]}, {"more": 1}, {"status": []}):
            hears({"runs": [{**answer.runs[0]._asdict(), **row}]})
            with pytest.warns(SerriedWarning, match="what `fir` sent are not runs; its runs are those of "):
                assert serried.runs() == [run]


def test_a_full_home_on_the_laptop_does_not_lose_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_answer: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    session = RemoteSession("fir", "fir")
    monkeypatch.setattr(session, "ask", lambda *_, **__: {"runs": []})
    monkeypatch.setattr(index, "remember", full)
    relay.renew(session)  # after each submission


def test_a_connection_that_breaks_is_no_result_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise NotConnected("lost")

    monkeypatch.setattr(elsewhere.FarRun, "wait", lambda *_: serried.State.COMPLETED)
    monkeypatch.setattr(elsewhere.FarRun, "tasks", [elsewhere.FarRun("fir", "k3f9q2/0", "half")])
    monkeypatch.setattr(elsewhere, "ask", lost)
    with pytest.raises(NotConnected, match="lost"):
        elsewhere.FarRun("fir", "k3f9q2", "half").results(return_exceptions=True)
