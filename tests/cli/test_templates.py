"""`serried init --template`: what it writes. That each project trains is in tests/examples."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from command_line import check_json
from serried import config, templates
from serried.base.errors import UsageError
from serried.cli import init

FILES = [".env.template", ".gitignore", "README.md", "requirements.txt", "serried.toml", "test_train.py", "train.py"]

each_template = pytest.mark.parametrize("template", templates.TEMPLATES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def start(*arguments: str) -> Result:
    done = CliRunner().invoke(init.command, arguments, catch_exceptions=False, standalone_mode=False)
    check_json(["init", *arguments], done.stdout)
    return done


@each_template
def test_a_template_is_written_whole_and_says_what_to_do_next(folder: Path, template: str):
    said = start("--template", template).stderr
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert said == (
        f"""\
wrote {", ".join(FILES)}
  pip install -r requirements.txt   install its requirements
  pytest                            train on two ranks, in seconds
  serried run                       run it here, now
  serried submit                    submit it to the cluster
"""
    )
    found = config.resolve(None, None, {}, "local", folder, os.environ)
    assert (found.experiment.name, found.experiment.command) == ("train", ("python", "train.py"))


def test_what_a_folder_may_have_anyway_stays_as_it_is(folder: Path):
    (folder / ".gitignore").write_text("mine")
    (folder / "README.md").symlink_to("nowhere.md")
    said = start("--template", "train").stderr
    assert (folder / ".gitignore").read_text() == "mine"
    assert not (folder / "nowhere.md").exists()
    assert said.splitlines()[1] == "note: `.gitignore`, `README.md` were kept"


@pytest.mark.parametrize("name", ["train.py", "serried.toml", "test_train.py", "requirements.txt"])
def test_where_the_program_has_a_file_already_nothing_is_written(folder: Path, name: str):
    (folder / name).symlink_to("nowhere")
    with pytest.raises(UsageError, match=rf"`{name}` exists already") as caught:
        start("--template", "plain")
    assert "in a new folder" in caught.value.hint
    assert [path.name for path in folder.iterdir()] == [name]


def test_when_one_file_cannot_be_written_none_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch):
    usual = Path.open

    def refuse(path: Path, mode: str = "r"):
        if path.name == "train.py" and mode == "xb":
            raise OSError(28, "No space left on device")
        return usual(path, mode)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"cannot write `train\.py`: no space left on device"):
        start("--template", "plain")
    assert list(folder.iterdir()) == []


def test_a_dry_run_shows_every_file_and_json_tells_what_was_written(folder: Path):
    shown = start("--template", "stream", "--dry-run").stdout
    assert [line[2:] for line in shown.splitlines() if line[2:] in FILES] == FILES
    assert (templates.files("stream")["train.py"]).decode() in shown
    assert list(folder.iterdir()) == []
    told = json.loads(start("--template", "train", "--json").stdout)
    assert told == {"schema": 1, "template": "train", "files": FILES, "written": True}
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_the_templates_are_listed():
    listed = start("--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["plain", "train", "lightning", "stream"]
    assert max(map(len, listed)) <= 80
    told = json.loads(start("--list", "--json").stdout)
    assert [each["name"] for each in told["templates"]] == list(templates.TEMPLATES)
