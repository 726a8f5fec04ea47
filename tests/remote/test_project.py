"""A project as it travels: which content is sent, what arrives, and what a submit makes of it over there."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import stat
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_shell import LoginNode

from building import a_plan
from serried.base.errors import ConfigError, Elsewhere, SerriedError, UsageError
from serried.config import layers
from serried.records.record import Record
from serried.remote import project as remote
from serried.remote import relay
from serried.remote.client import ConnectionLost, RemoteRequest, RemoteSession
from serried.remote.relay import login_of
from serried.schema import layout
from serried.schema.endings import End
from serried.schema.plan import Source
from serried.submission import again, snapshot
from serried.submission.prepare import job_environment, prepare
from serried.submission.request import Request, decide, decide_all, secrets_in
from serried.submission.snapshot import MANIFEST, SentProject

GIT = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


NOT_SENT = "entries that git ignores, or that `project.link` names, are not sent"
INSTEAD = "`data.send` sends small data, and other paths of data are those on the cluster"


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=folder, check=True, env=GIT, capture_output=True)


class Link:
    """A session whose far end is here. It counts bytes, and may be cut."""

    cluster = "fir"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.most: int | None = None
        """Of the content: the connection is cut after these bytes."""

    def ask(self, function, values, *, data=()):
        content = b"".join(data)
        self.calls.append((function, len(content)))
        is_cut = self.most is not None and function == "contents" and len(content) > self.most
        arriving = io.BytesIO(content[: self.most] if is_cut else content)
        values = {**values, "base": Path(os.environ["XDG_CACHE_HOME"], "serried")}
        answer = getattr(remote, function)(values, arriving, io.BytesIO())
        if is_cut:
            raise ConnectionLost("the connection broke")
        return answer


@pytest.fixture
def link(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "far cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Link()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "digits"
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "src/model.py").write_text("x = 1\n")
    return folder


def tree_of(place):
    base = Path(os.environ["XDG_CACHE_HOME"], "serried/projects", place["key"], place["digest"])
    sent = SentProject.read(base)
    return base / sent.name if sent else None


def sent(link, folder):
    return tree_of(remote.send(link, remote.survey(folder, os.environ)))


def packed(folder, sources):
    return snapshot.store(snapshot.survey(folder), sources).digest


def test_an_unchanged_project_is_named_and_not_sent(link, project):
    for number in range(10_000):
        (project / f"src/{number:05}.txt").write_text(f"{number}\n")
    first = sent(link, project)
    link.calls.clear()
    assert sent(link, project) == first
    assert link.calls == [("tree", 0)]


def test_of_a_changed_project_the_changes_are_sent(link, project):
    (project / "weights").write_bytes(os.urandom(300_000))
    before = sent(link, project)
    (project / "train.py").write_text("print(2)\n")
    (project / "src/model.py").rename(project / "src/net.py")
    link.calls.clear()
    after = sent(link, project)
    assert [function for function, _ in link.calls] == ["tree", "contents"]
    assert sum(size for _, size in link.calls) < 2000
    assert (after / "weights").stat().st_ino == (before / "weights").stat().st_ino
    assert (after / "train.py").read_text() == "print(2)\n"
    assert (before / "train.py").read_text() == "print(1)\n"
    assert sorted(path.name for path in after.rglob("*")) == ["net.py", "src", "train.py", "weights"]


def test_a_cluster_that_has_lost_its_trees_gets_all_again(link, project):
    first = sent(link, project)
    (project / "train.py").write_text("print(2)\n")
    shutil.rmtree(first.parents[1])
    assert (sent(link, project) / "src/model.py").read_text() == "x = 1\n"


def test_a_transfer_continues_where_it_was_cut(link, project):
    (project / "weights").write_bytes(os.urandom(3_000_000))
    link.most = 700_000
    with pytest.raises(ConnectionLost):
        sent(link, project)
    tree = sent(link, project)
    assert [size // 100_000 for function, size in link.calls if function == "contents"] == [30, 23, 16, 9, 2]
    assert (tree / "weights").read_bytes() == (project / "weights").read_bytes()


def test_two_transfers_of_one_tree_write_to_no_file_of_each_other(link, project):
    (project / "weights").write_bytes(b"a" * 300_000)
    survey = remote.survey(project, os.environ)
    ask, others = link.ask, []

    def ask_between(function, values, *, data=()):
        if function == "contents" and not others:
            aside = Path(os.environ["XDG_CACHE_HOME"], "serried/projects", values["key"], values["digest"] + ".part")
            for number in range(4):  # another transfer has them open
                others.append((aside / remote.INCOMING / str(number)).open("a+b"))
                fcntl.flock(others[-1], fcntl.LOCK_EX)
        return ask(function, values, data=data)

    link.ask = ask_between
    tree = tree_of(remote.send(link, survey))
    for other in others:
        other.write(b"its file has changed since")
        other.close()
    assert (tree / "weights").read_bytes() == b"a" * 300_000


def test_a_transfer_is_done_when_another_one_has_completed_the_tree(link, project):
    survey = remote.survey(project, os.environ)
    ask, first = link.ask, []

    def ask_late(function, values, *, data=()):
        content = list(data)
        if function == "contents" and not first:
            first.append(remote.send(Late(ask), survey))
        return ask(function, values, data=content)

    link.ask = ask_late
    assert remote.send(link, survey) == first[0]


class Late:
    cluster = "fir"

    def __init__(self, ask):
        self.ask = ask


NAMES = st.text(st.characters(min_codepoint=1, exclude_characters="/"), min_size=1, max_size=12).map(
    lambda text: os.fsdecode(text.encode("utf-8", "surrogatepass"))
)
CONTENTS = st.tuples(st.binary(max_size=40), st.sampled_from([0o644, 0o600, 0o755, 0o444]))


@given(versions=st.lists(st.dictionaries(NAMES, CONTENTS, max_size=6), min_size=1, max_size=3), data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_version_arrives_as_it_is(link, tmp_path, versions, data):
    folder = tmp_path / "versions" / "-rf $(id) \n'\""
    for version in versions:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, (content, mode) in version.items():
            if name not in (".", ".."):
                (folder / name).write_bytes(content)
                (folder / name).chmod(mode)
        link.most = data.draw(st.none() | st.integers(0, 60))
        try:
            tree = sent(link, folder)
        except ConnectionLost:
            link.most = None
            tree = sent(link, folder)
        expected, actual = snapshot.survey(folder), snapshot.survey(tree)
        assert actual._replace(project=folder) == expected
        assert packed(tree, tmp_path / "a") == packed(folder, tmp_path / "b")


def test_a_snapshot_of_the_tree_is_that_of_the_project(link, project, tmp_path):
    git(project, "init", "-qb", "trunk")
    (project / ".gitignore").write_text("data\n.venv\n")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "best").symlink_to(project / "src/model.py")
    (project / "out").symlink_to("/nonexistent")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    (project / "train.py").write_text("print('\N{SNOWMAN}')\n")
    (project / os.fsdecode(b"n\xe9\nw")).write_text("new")
    (project / ".env").write_text("TOKEN=abc\n")
    (project / "data").mkdir()
    (project / "data/big").write_text("x")
    tree = sent(link, project)
    own, there = snapshot.survey(project), snapshot.survey(tree)
    assert own.links == (".env", "data")
    assert there._replace(bytes=own.bytes) == own._replace(
        project=tree,
        links=(),
        warnings=(
            *own.warnings,
            f"{NOT_SENT}: `.env`, `data`; {INSTEAD}",
        ),
    )
    assert packed(tree, tmp_path / "a") == packed(project, tmp_path / "b")
    assert snapshot.read_revision(tree) == snapshot.read_revision(project)


@pytest.mark.parametrize("has_file", [True, False])
def test_a_submit_in_the_tree_is_that_in_the_project(link, project, tmp_path, monkeypatch, has_file):
    if has_file:
        (project / "serried.toml").write_text('[experiments.a]\ncommand = "python train.py"\n')
        (project / "a.sbatch").write_text("#!/bin/bash\n#SBATCH -N 1\npython train.py\n")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    (project / "train.py").write_text("print(2)\n")

    def prepared(folder, **asked):
        asked = {"overrides": {"clusters.local.root": str(tmp_path / "runs")}, **asked}
        decided = decide(Request(cluster="local", **asked), folder, os.environ)
        return prepare(decided.plan, decided.resolved, os.environ)

    here = "src" if not has_file else "."
    place = remote.send(link, remote.survey(project / here, os.environ))
    monkeypatch.setenv("SERRIED_SENT_SETTINGS", "")
    own = prepared(project / here, command=("python", "-V"))
    monkeypatch.chdir(tmp_path)
    remote.enter(tmp_path / "far cache/serried", place)
    there = prepared(Path.cwd(), command=("python", "-V"))
    unlike = {"run": "", "created": "", "source": own.plan.source}
    assert there.plan.source._replace(directory=str(project)) == own.plan.source
    assert there.plan._replace(**unlike) == own.plan._replace(**unlike)
    assert there.revision == own.revision
    assert there.revision.diff
    archives = [snapshot.store(one.survey, tmp_path / folder) for one, folder in ((own, "a"), (there, "b"))]
    assert archives[0].path.read_bytes() == archives[1].path.read_bytes()
    if has_file:
        assert prepared(Path.cwd(), command=("a.sbatch",), is_script=True).plan.source.snapshot


@pytest.mark.usefixtures("link")
def test_the_values_of_an_env_file_travel_as_variables_and_not_as_a_file(project, tmp_path, monkeypatch):
    (project / "serried.toml").write_text('[experiments.a]\nenvironment.env_file = "keys"\ncommand = "true"\n')
    (project / "keys").write_text("TOKEN=abc def\n")
    cluster = {"clusters.fir.login": "fir", "clusters.fir.scheduler": "slurm"}
    with pytest.raises(Elsewhere) as elsewhere:
        decide(Request(cluster="fir", is_sent=True, overrides=cluster), project, os.environ)
    assert elsewhere.value.variables == {"TOKEN": "abc def", "SERRIED_SENT_SECRETS": "TOKEN"}
    (project / "keys").unlink()
    there = {**os.environ, **elsewhere.value.variables, "SERRIED_AT": "fir"}
    monkeypatch.chdir(tmp_path)
    plan = decide(Request(cluster="local"), project, there).plan
    assert plan.environment.secrets == ("TOKEN",)
    assert job_environment(plan, there)["TOKEN"] == "abc def"


def test_a_project_that_cannot_be_sent_gets_no_hint_at_a_run_in_place(project, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "FILES_LIMIT", 1)
    request = Request(cluster="local", command=("true",), overrides={"clusters.local.root": str(tmp_path / "runs")})
    decided, hints = decide(request, project, os.environ), []
    submit = partial(prepare, decided.plan, decided.resolved, os.environ)
    for action in (partial(remote.survey, project, os.environ), submit):
        with pytest.raises(UsageError, match="the snapshot would hold") as raised:
            action()
        hints.append(raised.value.hint.partition(" under `[project]`")[2])
    assert hints == ["", ", or run in place: `--set project.snapshot=false`"]


def test_several_experiments_and_old_runs_travel_with_the_secrets_of_each(project, monkeypatch):
    text = '[experiments.a]\ncommand = "true"\nenvironment.env_file = "keys"\n[experiments.b]\ncommand = "true"\n'
    file = project / "serried.toml"
    file.write_text(text + 'environment.secrets = ["HF"]\nnotify.webhook = "HOOK"\n')
    (project / "keys").write_text("TOKEN=abc\n")
    variables = {"HF": "hf", "HOOK": "https://example.org", "TOKEN": "abc", "SERRIED_SENT_SECRETS": "TOKEN"}
    for name in ("HF", "HOOK"):
        monkeypatch.setenv(name, variables[name])
    cluster = {"clusters.fir.login": "fir", "clusters.fir.scheduler": "slurm"}
    request = Request(cluster="fir", is_sent=True, overrides=cluster)
    with pytest.raises(Elsewhere) as elsewhere:
        decide_all(request, ["b", "a"], project, os.environ)
    assert (elsewhere.value.variables, secrets_in(project, "fir", os.environ)) == (variables, variables)
    file.write_text(text.replace('"true"', '"true"\ncluster = "fir"', 1) + 'cluster = "local"\n')
    with pytest.raises(UsageError, match="the experiments are for `fir` and `local`"):
        decide_all(request._replace(cluster=None), ["a", "b"], project, os.environ)
    file.write_text(text + 'environment.env_file = "other"\n')
    (project / "other").write_text("TOKEN=def\n")
    with pytest.raises(UsageError, match="the secret `TOKEN` has another value in"):
        decide_all(request, ["a", "b"], project, os.environ)


@pytest.mark.parametrize("name", ["serried.toml", "pyproject.toml"])
def test_a_project_cannot_choose_the_host_of_a_cluster(name, project, monkeypatch):
    monkeypatch.chdir(project)
    request = Request(cluster="fir", command=("true",), is_sent=True)
    prefix = "tool.serried." if name == "pyproject.toml" else ""
    (project / name).write_text(f'[{prefix}clusters.fir]\nlogin = "evil.example"\n')
    for action in (lambda: login_of("fir"), lambda: decide(request, project, os.environ)):
        with pytest.raises(ConfigError) as refused:
            action()
        problem = "a project's file cannot set `login`, the host that gets your secrets"
        assert refused.value.message == f"{name}:2: {problem}"
        assert refused.value.hint.endswith("/serried/config.toml`, under `[clusters.fir]`")


@pytest.mark.usefixtures("link")
def test_a_submit_over_there_runs_the_project_of_here(project, tmp_path):
    (project / "serried.toml").write_text('[experiments.a]\ncommand = "true"\n')
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    node, output, errors = LoginNode(tmp_path / "home of ada"), bytearray(), bytearray()
    with RemoteSession("fir", "fir.example", connect=node.connect, environ=os.environ) as session:
        for words in (("submit", "--cluster", "local", "--dry-run", "--json"), ("submit", "--in-place", "--dry-run")):
            place = remote.send(session, remote.survey(project / "src", os.environ))
            request = RemoteRequest(words, {}, changes=True, directory=place)
            session.call(request, on_output=output.extend, on_errors=errors.extend)
    plan = json.loads(output)["plan"]
    assert (plan["project"], plan["source"]["archive"]) == ("digits", None)
    (folder,) = Path(node.home, ".cache/serried/projects").iterdir()
    assert plan["source"]["directory"] == str(folder / place["digest"] / "digits")
    assert errors.decode() == (
        "error: a run that is submitted from another machine cannot run in place\n\n"
        "hint: leave out `--in-place` and `project.snapshot = false`, or log in to the cluster and submit there\n"
    )


def test_new_code_of_a_rerun_is_the_tree_that_was_sent_last(link, project, tmp_path):
    old = sent(link, project)
    (project / "train.py").write_text("print(2)\n")
    new = sent(link, project)
    assert layout.in_tree_of(new / "src", old / "src/a.sbatch") == new / "src/a.sbatch"
    for here, path in ((tmp_path, old), (new, tmp_path), (new, Path(f"{old.parents[1]}0/x/y"))):
        assert layout.in_tree_of(here, path) == path


def test_secrets_stay_here(link, project):
    (project / "serried.toml").write_text('[experiments.a]\nenvironment = {env_file = "keys"}\ncommand = "true"\n')
    git(project, "init", "-q")
    for name in ("keys", ".env", "src/.env"):
        (project / name).write_text("TOKEN=abc\n")
    tree = sent(link, project)
    assert not [path for path in tree.parent.rglob("*") if path.is_file() and "abc" in path.read_text()]


def test_the_name_and_the_folder_are_those_of_the_project(link, tmp_path, monkeypatch):
    folder = tmp_path / "my repo"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/train.py").write_text("1")
    git(folder, "init", "-q")
    place = remote.send(link, remote.survey(folder / "a/b", os.environ))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERRIED_SENT_SETTINGS", "")
    remote.enter(tmp_path / "far cache/serried", place)
    assert Path.cwd() == tree_of(place) / "a/b"
    assert snapshot.root_of(Path.cwd()) == tree_of(place)


def test_settings_of_the_user_here_are_stronger_than_those_over_there(link, project, tmp_path, monkeypatch):
    for folder, root, other in (("config", "/scratch/here", "qos"), ("far", "/scratch/there", "account")):
        (tmp_path / folder / "serried/clusters").mkdir(parents=True)
        (tmp_path / folder / "serried/clusters/fir.toml").write_text(f'root = "{root}"\nresources.{other} = "x"\n')
    place = remote.send(link, remote.survey(project, os.environ))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERRIED_SENT_SETTINGS", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "far"))
    remote.enter(tmp_path / "far cache/serried", place)
    stacked = layers.stack(layers.gather(layers.find(Path.cwd(), os.environ), {}, os.environ), None, "fir")
    values = {keys[-1]: (setting.value, str(setting.origin)) for keys, setting in stacked.items()}
    assert values == {
        "root": ("/scratch/here", f"{tmp_path}/config/serried/clusters/fir.toml:1"),
        "qos": ("x", f"{tmp_path}/config/serried/clusters/fir.toml:2"),
        "account": ("x", f"{tmp_path}/far/serried/clusters/fir.toml:2"),
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("print(3)\n"),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o777),
        lambda path: (path.unlink(), path.symlink_to("src/model.py")),
    ],
    ids=["written", "deleted", "mode", "link"],
)
def test_a_tree_that_was_changed_is_refused_and_sent_again(link, project, damage):
    tree = sent(link, project)
    while tree.joinpath("train.py").stat().st_mtime_ns == tree.joinpath("x").touch():
        pass
    tree.joinpath("x").unlink()
    damage(tree / "train.py")
    snapshot._sent.cache_clear()
    with pytest.raises(SerriedError, match=r"`train\.py` has changed in"):
        snapshot.survey(tree)
    assert sent(link, project) == tree
    assert (tree / "train.py").read_text() == "print(1)\n"
    assert stat.S_IMODE((tree / "train.py").stat().st_mode) == stat.S_IMODE((project / "train.py").stat().st_mode)
    assert snapshot.survey(tree).files == ("src/model.py", "train.py")


def test_trees_that_are_not_used_are_deleted_but_not_the_newest(link, project):
    trees = []
    for number in range(5):
        (project / "train.py").write_text(f"print({number})\n")
        trees.append(sent(link, project))
        os.utime(trees[-1].parent, (number, number))
    assert [tree.exists() for tree in trees] == [False, False, False, True, True]
    assert sorted(trees[0].parents[1].iterdir()) == sorted(tree.parent for tree in trees[3:])


@pytest.fixture
def data(project):
    """A git-ignored folder of the project, which `data.send` names."""
    git(project, "init", "-q")
    (project / ".gitignore").write_text("data\n")
    (project / "serried.toml").write_text('[experiments.a]\ncommand = "python train.py"\ndata.send = ["data"]\n')
    (project / "data/raw").mkdir(parents=True)
    (project / "data/raw/x.bin").write_bytes(os.urandom(300_000))
    (project / "data/labels.csv").write_text("1,2\n" * 100_000)
    return project / "data"


def test_data_is_sent_once_and_linked_by_the_snapshot(link, project, data):
    (data / "empty").mkdir()
    (data / ".env").write_text("TOKEN=abc")
    (data / os.fsdecode(b"-rf $(id)\n\xe9")).symlink_to("raw/x.bin")
    first = sent(link, project)
    surveyed = snapshot.survey(first)
    assert (surveyed.files, surveyed.links) == ((".gitignore", "serried.toml", "src/model.py", "train.py"), ("data",))
    assert surveyed.warnings == ()
    there = {str(path.relative_to(first)): path for path in first.rglob("data/**/*")}
    modes = {name: stat.filemode(path.lstat().st_mode) for name, path in there.items()}
    assert modes == {
        os.fsdecode(b"data/-rf $(id)\n\xe9"): "lrwxrwxrwx",
        "data/labels.csv": "-r--r--r--",
        "data/raw": "dr-x------",
        "data/raw/x.bin": "-r--r--r--",
    }
    link.calls.clear()
    assert sent(link, project) == first
    assert link.calls == [("tree", 0)]
    (project / "train.py").write_text("print(2)\n")
    (data / "labels.csv").write_text("1,3\n" * 100_000)
    link.calls.clear()
    second = sent(link, project)
    assert sum(size for _, size in link.calls) < 10_000
    assert (second / "data/labels.csv").read_text() == "1,3\n" * 100_000
    assert (second / "data/raw/x.bin").stat().st_ino == (first / "data/raw/x.bin").stat().st_ino


def test_data_arrives_after_any_cut(link, project, data):
    link.most = 100_000
    tree = None
    while tree is None:
        with contextlib.suppress(ConnectionLost):
            tree = sent(link, project)
    assert {path.name: path.read_bytes() for path in (tree / "data").rglob("*.*")} == {
        path.name: path.read_bytes() for path in data.rglob("*.*")
    }


def test_a_link_that_data_names_stands_for_its_target(link, project, tmp_path):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a").write_text("1")
    (project / "data").symlink_to(tmp_path / "sets")
    (project / "weights.pt").symlink_to(tmp_path / "sets/a")
    survey = remote.survey(project, os.environ, ("data", "weights.pt"))
    tree = tree_of(remote.send(link, survey))
    assert not [path for path in tree.rglob("*") if path.is_symlink()]
    assert [(tree / name).read_text() for name in ("data/a", "weights.pt")] == ["1", "1"]
    assert snapshot.survey(tree).links == ("data", "weights.pt")


def test_a_run_cannot_change_the_data_of_the_next_one(link, project, data):
    tree = sent(link, project)
    (tree / "data/labels.csv").unlink()
    (tree / "data/labels.csv").write_text("other")
    with pytest.raises(SerriedError, match=r"`data/labels.csv` has changed in "):
        snapshot.survey(tree)
    assert (sent(link, project) / "data/labels.csv").read_text() == (data / "labels.csv").read_text()


def plan_from(tree):
    return a_plan("k3f9q2")._replace(source=Source(str(tree), links=("data",)))


def test_a_tree_stays_while_a_run_links_its_data(link, project, data):
    trees = []
    for number in range(4):
        (data / "labels.csv").write_text(f"{number}\n")
        trees.append(sent(link, project))
        os.utime(trees[-1].parent, (number, number))
        if number == 0:
            record = Record.create(plan_from(trees[0]))
    assert [tree.exists() for tree in trees] == [True, False, True, True]
    with pytest.raises(UsageError, match="`data` of run `k3f9q2` is not on the cluster any more"):
        again.check_links("k3f9q2", plan_from(trees[1]))
    record.write_end(End.of({"state": "COMPLETED", "exit_code": 0}))
    (data / "labels.csv").write_text("last\n")
    trees.append(sent(link, project))
    assert [tree.exists() for tree in trees] == [False, False, False, True, True]


@pytest.mark.usefixtures("link", "data")
@pytest.mark.parametrize(("path", "problem"), [("dat", "does not exist in `"), ("src/.env", "holds secrets and is ")])
def test_data_that_cannot_be_sent_is_refused_before_anything_is_sent(project, path, problem):
    (project / "src/.env").write_text("TOKEN=abc")
    login = {"clusters.fir.login": "fir", "clusters.fir.scheduler": "slurm", "data.send": path}
    for request in (Request("a", cluster="fir", is_sent=True, overrides=login), Request("a", overrides=login)):
        with pytest.raises(UsageError, match=f"^`data.send` names `{path}`, which {problem}") as refused:
            prepare(*decide(request, project, os.environ)[:2], os.environ)
    assert path != "dat" or refused.value.hint == "did you mean `data`?"


def test_a_pipe_is_not_sent(project):
    os.mkfifo(project / "pipe")
    (project / "serried.toml").write_text('[experiments.a]\ncommand = "true"\ndata.send = "pipe"\n')
    with pytest.raises(UsageError, match=r"^`data.send` names `pipe`, which is neither a file nor a folder$"):
        remote.survey(project, os.environ)


@pytest.mark.usefixtures("link", "data")
def test_several_experiments_send_the_data_of_all(project):
    (project / "words.txt").write_text("a b c")
    with (project / "serried.toml").open("a") as file:
        file.write('[experiments.b]\ncommand = "true"\ndata.send = ["words.txt", "data"]\n')
    login = {"clusters.fir.login": "fir", "clusters.fir.scheduler": "slurm", "resources.account": "def-ada"}
    with pytest.raises(Elsewhere) as elsewhere:
        decide_all(Request(cluster="fir", is_sent=True, overrides=login), ("a", "b"), project, os.environ)
    assert elsewhere.value.data == ("data", "words.txt")
    plan = decide(Request("b", cluster="fir", overrides=login), project, os.environ)
    notes = prepare(plan.plan, plan.resolved, os.environ, observe=None).notes
    assert "`data.send` is 3 files, 700.0 kB; only content that is not on `fir` yet is sent" in notes


@pytest.mark.usefixtures("link")
def test_a_file_is_read_again_only_after_a_change(project, data, monkeypatch):
    opened = []

    def counting_open(path, *how, **options):
        opened.append(os.path.relpath(path, project))
        return open(path, *how, **options)  # noqa: PTH123

    monkeypatch.setattr(remote, "open", counting_open, raising=False)
    every = [".gitignore", "data/labels.csv", "data/raw/x.bin", "serried.toml", "src/model.py", "train.py"]
    first = remote.survey(project, os.environ)
    assert sorted(opened) == every
    opened.clear()
    monkeypatch.setattr(remote, "now", lambda: time.time_ns() + 60 * 10**9)
    assert remote.survey(project, os.environ) == first  # each may have changed again without a new time
    assert sorted(opened) == every
    opened.clear()
    before = (data / "labels.csv").stat()
    (data / "labels.csv").write_text("3,2\n" * 100_000)
    os.utime(data / "labels.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remote.survey(project, os.environ) != first
    assert opened == ["data/labels.csv"]
    for damaged in (b"", b"[]", b'{"a": 1}'):
        (kept,) = Path(os.environ["XDG_CACHE_HOME"], "serried/digests").iterdir()
        kept.write_bytes(damaged)
        remote.survey(project, os.environ)
        assert len(json.loads(kept.read_bytes())) == len(every)


@pytest.mark.usefixtures("data")
def test_much_data_is_sent_after_a_confirmation(link, project, monkeypatch):
    monkeypatch.setattr(relay, "MUCH_BYTES", 100_000)
    survey = remote.survey(project, os.environ)
    refused = pytest.raises(UsageError, match=r"^refusing to send 700\.\d kB without confirmation")
    with refused, relay._sending(is_agreed=False) as observe:
        remote.send(link, survey, observe)
    for is_agreed in (True, False):  # the second time, all is there
        with relay._sending(is_agreed=is_agreed) as observe:
            remote.send(link, survey, observe)


@pytest.mark.parametrize("path", ["../x", "digits/../../x", "/etc/x", "other/x", "digits/a/b", MANIFEST, "digits"])
def test_a_manifest_that_leads_out_of_its_tree_is_refused(link, project, path):
    (project / "a").symlink_to("/tmp")
    prepared = remote.survey(project, os.environ)
    files = {**prepared.sent.files, path: prepared.sent.files["digits/train.py"]}
    hostile = prepared._replace(sent=prepared.sent._replace(files=files))
    with pytest.raises(SerriedError, match="the manifest of the project is damaged"):
        remote.send(link, hostile)


def test_a_file_that_changes_while_it_is_sent_is_an_error(link, project):
    prepared = remote.survey(project, os.environ)
    (project / "train.py").write_text("print(2)\n")
    with pytest.raises(SerriedError, match=r"`digits/train.py` changed while it was being sent"):
        remote.send(link, prepared)


def test_a_name_that_is_too_long_over_there_is_named(link, project):
    prepared = remote.survey(project, os.environ)
    files = {**prepared.sent.files, f"digits/{'x' * 300}": prepared.sent.files["digits/train.py"]}
    with pytest.raises(SerriedError, match=r"cannot store the project .*: file name too long") as error:
        remote.send(link, prepared._replace(sent=prepared.sent._replace(files=files)))
    assert error.value.hint == "a name in the project is too long for the file system of the cluster"


def test_a_home_directory_is_not_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="cannot be a project"):
        remote.survey(tmp_path, os.environ)
