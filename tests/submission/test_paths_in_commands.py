"""What a command names and the job would not find is refused, or warned of, before anything is submitted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide


def write(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")


@pytest.fixture
def repository(tmp_path):
    """Experiments import from a folder beside them; what git ignores lies at its top, beside them, and deeper."""
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    write(folder, "lib/model.py", "experiments/digits/train.py", "data/set", "experiments/digits/outputs/model.pt")
    write(folder, "experiments/digits/.env", "experiments/digits/__pycache__/x.pyc", "lib/built/deep.so")
    (folder / ".gitignore").write_text("data/\noutputs/\nbuilt/\n__pycache__/\n")
    return folder


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("python trian.py", "`PROJECT` has no `trian.py`", "did you mean `train.py`?"),
        ("python -u -W error gone/run.py", "`PROJECT/gone` has no `gone/run.py`", "paths in a command are"),
        ("bash ../run.sh", "`../run.sh` is outside of the snapshot of `PROJECT`", "submit from the folder"),
    ],
)
def test_a_script_that_the_job_would_not_find_is_refused(ask, project, command, message, hint):
    write(project.parent, "run.sh")
    with pytest.raises(UsageError) as caught:
        ask(command=command.split())
    assert caught.value.message == message.replace("PROJECT", str(project))
    assert caught.value.hint.startswith(hint)


def test_what_cannot_be_known_or_is_there_is_not_refused(ask, project):
    write(project, "package/__main__.py")
    for command in (
        "python -c pass",
        "python -m package.module",
        "python -",
        "python {data}/train.py",
        "python /elsewhere/train.py",
        "bash -lc ./made-by-nobody.sh",
        "python -X dev train.py",
        "python package",
    ):
        assert not [text for text in ask(command=command.split()).warnings if "snapshot" in text]
    (project / "commands.txt").write_text("python train.py\npython tran.py\n")
    with pytest.raises(UsageError, match=r"has no `tran\.py`"):
        ask(command=None, each=Path("commands.txt"))


def test_a_workdir_may_be_a_symbolic_link_that_the_snapshot_has(ask, project):
    write(project, "experiments/digits/run.py")
    (project / "digits").symlink_to("experiments/digits")
    prepared = ask(command=["python", "run.py"], overrides={"workdir": "digits"})
    assert (prepared.plan.source.workdir, prepared.warnings) == ("digits", ())


def test_in_place_a_script_may_come_later_from_setup_alone(ask):
    in_place = {"project.snapshot": False}
    ask(command=["python", "later.py"], overrides={**in_place, "environment.setup": "cp train.py later.py"})
    with pytest.raises(UsageError, match=r"has no `later\.py`"):
        ask(command=["python", "later.py"], overrides=in_place)


def test_data_beside_the_project_is_warned_of(ask, project):
    write(project.parent, "data/set")
    (project / "empty").mkdir()
    command = "python train.py --data=../data ../data empty --lr=0.1 --out new/folder ../{run}"
    warnings = [text for text in ask(command=command.split()).warnings if "snapshot" in text]
    assert [text.split(" in the command ")[0] for text in warnings] == ["`../data`", "`empty`"]
    assert "use its absolute path, or `--stage` it" in warnings[0]
    assert "it is an empty folder" in warnings[1]


@pytest.mark.parametrize(
    ("command", "overrides", "warning"),
    [
        ("python PROJECT/train.py", {}, ("PROJECT/train.py", "the command", "train.py")),
        ("python train.py --config=PROJECT/conf/x.yaml", {}, ("PROJECT/conf/x.yaml", "the command", "conf/x.yaml")),
        ("python train.py paths.conf=PROJECT/../project/conf", {}, ("PROJECT/../project/conf", "the command", "conf")),
        ("python train.py files=[/dev/null,PROJECT/conf/x.yaml]", {}, ("PROJECT/conf/x.yaml", "the command", None)),
        ("python train.py LINK/conf/{rank}.yaml", {}, ("LINK/conf/", "the command", "conf")),
        ("bash -c cd\tPROJECT;exec\tpython\ttrain.py", {}, ("PROJECT", "the command", ".")),
        ("cc -IPROJECT/conf x.c", {}, ("PROJECT/conf", "the command", "conf")),
        ("python train.py --in=PROJECT/conf/a\tb", {}, ("PROJECT/conf/a b", "the command", "conf/a b")),
        ("python train.py", {"config.file": "PROJECT/conf/x.yaml"}, ("PROJECT/conf/x.yaml", "`file`", "conf/x.yaml")),
        ("python train.py", {"environment.env.A": "/usr:PROJECT/conf"}, ("PROJECT/conf", "`A`", "conf")),
        (
            "python train.py",
            {"environment.setup": ". PROJECT/conf/x.yaml"},
            ("PROJECT/conf/x.yaml", "`environment.", None),
        ),
        ("python train.py /dev/null PROJECT/train.py.new PROJECTS/x conf/x.yaml /etcPROJECT/conf", {}, None),
        ("python train.py --data PROJECT/data --out=PROJECT/results", {"project.link": ["data"]}, None),
        ("python train.py --data PROJECT/conf", {"data.stage": ["PROJECT/conf"]}, None),
        ("python PROJECT/train.py", {"project.snapshot": False}, None),
    ],
)
def test_an_absolute_path_to_a_copied_file_is_warned_of(ask, project, command, overrides, warning):
    write(project, "conf/x.yaml", "conf/a b", "data/set")
    (project.parent / "link").symlink_to(project)

    def filled(value):
        if isinstance(value, list):
            return [filled(each) for each in value]
        return value.replace("PROJECT", str(project)).replace("LINK", f"{project.parent}/link") if value else value

    overrides = {name: filled(value) if isinstance(value, str | list) else value for name, value in overrides.items()}
    words = [word.replace("\t", " ") for word in filled(command).split(" ")]
    said = [text for text in ask(command=words, overrides=overrides).warnings if "the project's own" in text]
    if warning is None:
        assert said == []
    else:
        path, where, relative = map(filled, warning)
        assert said[0].startswith(f"`{path}` in {where}")
        assert relative is None or said[0].endswith(f"write `{relative}` for the copy in the snapshot")


def from_within(folder, root, command="python train.py ../../data", **overrides):
    overrides = {"clusters.local.root": str(root), **overrides}
    request = Request(cluster="local", command=command.split(), overrides=overrides)
    decided = decide(request, folder, os.environ)
    return prepare(decided.plan, decided.resolved, os.environ, decided.each)


def test_a_folder_of_a_repository_is_taken_with_the_repository(repository, root):
    prepared = from_within(repository / "experiments/digits", root)
    source = prepared.plan.source
    assert (source.directory, source.workdir) == (str(repository), "experiments/digits")
    assert {"lib/model.py", "experiments/digits/train.py"} <= set(prepared.survey.files)
    assert source.links == ("data", "experiments/digits/.env", "experiments/digits/outputs")
    assert (prepared.plan.project, prepared.warnings) == ("digits", ())


def test_with_a_file_of_its_own_it_is_a_project_of_its_own(repository, root):
    folder = repository / "experiments/digits"
    write(folder, "serried.toml")
    prepared = from_within(folder, root)
    assert prepared.plan.source.directory == str(folder)
    assert [text for text in prepared.warnings if "`../../data` in the command is outside of the snapshot" in text]


def test_links_are_relative_to_the_folder_that_was_meant(repository, root):
    prepared = from_within(repository / "experiments/digits", root, **{"project.link": ["!outputs", "train.py"]})
    assert prepared.plan.source.links == ("data", "experiments/digits/.env", "experiments/digits/train.py")


def test_a_repository_that_is_too_large_is_left_out_with_a_word(repository, root):
    with (repository / "lib/huge.bin").open("wb") as file:
        file.truncate(300 << 20)
    folder = repository / "experiments/digits"
    prepared = from_within(folder, root, "python train.py")
    assert prepared.plan.source.directory == str(folder)
    assert prepared.warnings[0].startswith(f"the snapshot has `{folder}` alone, without the rest of its git repository")


def test_a_home_under_git_is_no_repository_of_its_projects(repository, root, monkeypatch):
    monkeypatch.setenv("HOME", str(repository))
    folder = repository / "experiments/digits"
    assert from_within(folder, root).plan.source.directory == str(folder)
