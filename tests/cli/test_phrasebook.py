"""What pages and the advice of `serried why` tell people to type is there to be typed."""

from __future__ import annotations

import importlib
import re
import shlex
import tarfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from serried.base.errors import SerriedError
from serried.cli import VERBS, GroupWithHelp, serried
from serried.config import definitions
from serried.records.why import ADVICE, WARNINGS
from serried.schema import names
from tables import for_each

DOCS = Path(__file__).parents[2] / "docs"
PHRASES = (DOCS / "start" / "cheat-sheet.md").read_text(encoding="utf-8")


def said(page: str) -> list[str]:
    """Every command of Serried's that a page shows between backticks."""
    return sorted(set(re.findall(r"`(serried [^`]+)`", page)))


def parse(words: list[str]) -> None:
    """Reads a command line as the verb would, and runs nothing. Raises click's own errors."""
    verb, *rest = words
    assert verb in VERBS
    command = serried.get_command(click.Context(serried), verb)
    assert command is not None
    while isinstance(command, click.Group):
        assert isinstance(command, GroupWithHelp)
        rest = command.with_default(rest)
        command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None
    command.make_context(verb, rest)


@for_each("phrase", said(PHRASES))
def test_each_phrase_is_a_verb_with_flags_that_it_takes(phrase: str):
    parse(shlex.split(phrase)[1:])


def test_the_page_has_phrases_and_no_stale_placeholder():
    assert len(said(PHRASES)) > 35
    placeholders = set(re.findall(r"`\{(\w+)\}`", PHRASES))
    assert placeholders == {"rank", "local_rank", "world_size", "nodes", "ranks", "gpus", "task", "run", "results"}
    assert placeholders <= set(names.PLACEHOLDERS)
    assert set(re.findall(r"`\$(SERRIED_\w+)`", PHRASES)) == {names.TASK, names.RUN_ID}


ROOT = DOCS.parent
EVERY_PAGE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def typed(page: str) -> set[str]:
    """Each line of a page that is a command of Serried's, too: what follows two spaces or a `#` is said about it."""
    lines = re.findall(r"(?m)^ {0,4}(?:\$ )?(serried [^\n`]*[^\n`\\])$", page)
    return {re.sub(r" {2,}.*| # .*|>.*| \| .*|[\[\]…]", "", one) for one in [*said(page), *lines]}


def wrong(command: str) -> str | None:
    """What is not there of it; an argument that is left out is not: `serried stop`, in a sentence."""
    try:
        parse(shlex.split(command)[1:])
    except (click.MissingParameter, click.BadOptionUsage):  # `--from` in a sentence
        return None
    except (click.UsageError, AssertionError, KeyError, SerriedError) as error:
        return f"{command}: {error}"
    return None


def test_no_page_shows_a_verb_or_a_flag_that_is_not_there():
    commands = {one for page in EVERY_PAGE for one in typed(page.read_text(encoding="utf-8"))}
    groups = {one for one in commands if re.fullmatch(r"serried (--help|\w+)", one)}
    assert len(commands - groups) > 150
    assert [told for one in sorted(commands - groups) if (told := wrong(one))] == []
    assert {one.split()[1] for one in groups} - {"--help"} <= set(VERBS)


MOVING = (DOCS / "start" / "moving.md").read_text(encoding="utf-8")
RECIPES = (DOCS / "start" / "recipes.md").read_text(encoding="utf-8")
LINES = sorted(set(re.findall(r"(?m)^    (serried .*?)(?: {2,}.*)?$", RECIPES)))
NOT_HERE = re.compile(
    "GPUs were requested, and this machine has|is not installed|`ch-run` cannot run|no container|cannot be used here"
)
"""What a machine of the tests may lack, and another has."""


def test_there_are_twelve_recipes_with_commands():
    recipes = RECIPES.split("\n## ")[1:]
    assert len(recipes) == 12
    assert [recipe.partition("\n")[0] for recipe in recipes if "\n    serried " not in recipe] == []


@pytest.mark.parametrize("command", [*said(MOVING), *LINES])
def test_each_new_command_does_what_its_page_says(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As far as a dry run goes; a command that needs a run is read, and no more."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("WANDB_API_KEY", "a-key")
    for image in ("train.sif", "torch.sif"):
        (project / image).touch()
    for name in ("prepare", "train", "evaluate"):
        with (project / "serried.toml").open("a", encoding="utf-8") as file:
            file.write(f'experiments.{name}.command = "python {name}.py"\n')
    (project / "sweep.yaml").write_text("program: train.py\nparameters: {lr: {value: 0.1}}\n", encoding="utf-8")
    (project / "commands.txt").write_text("python train.py --lr 0.1\npython train.py --lr 0.01\n", encoding="utf-8")
    with tarfile.open(project / "imagenet.tar", "w") as tar:
        tar.add(project / "sweep.yaml", "sweep.yaml")
    words = shlex.split(command.replace("/scratch/ada", str(project)))[1:]
    named = {word for word in words if word.endswith((".py", ".sh")) and "/" not in word}
    for script in {"prepare.py", "train.py", "evaluate.py", *named}:
        (project / script).touch()
    parse(words)
    if words[0] not in ("submit", "run", "sweep") or words == ["submit"] or {"last", "train:any", "show"} & {*words}:
        return
    at = words.index("--") if "--" in words else len(words)
    where = [] if words[0] == "run" or "--cluster" in words else ["--cluster", "slurm"]
    verb = importlib.import_module(f"serried.cli.{words[0]}").command
    done = CliRunner().invoke(verb, [*words[1:at], *where, "--dry-run", *words[at:]], standalone_mode=False)
    if isinstance(done.exception, SerriedError) and NOT_HERE.search(done.exception.message):
        return
    assert done.exception is None


def test_each_setting_and_flag_of_a_table_is_there():
    settings = re.findall(r"`((?:limit|environment|resources|container|launch|data|checkpoint)\.\w+)", MOVING)
    assert [
        key for key in settings if key.split(".")[1] not in definitions.COMMAND_LINE.tables[key.split(".")[0]].keys
    ] == []
    here = [cell for line in MOVING.splitlines() if line.startswith("| ") for cell in line.split(" | ")[1:2]]
    flags = {
        flag for cell in here for span in re.findall(r"`(--[^`]+)`", cell) for flag in re.findall(r"--[a-z-]+", span)
    }
    submit = importlib.import_module("serried.cli.submit").command
    known = {name for parameter in submit.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert flags - known == set()


@for_each("key", sorted(set(re.findall(r"`((?:limit|environment|resources)\.\w+)", PHRASES))))
def test_each_setting_that_it_names_is_there(key: str):
    table, name = key.split(".")
    assert name in definitions.COMMAND_LINE.tables[table].keys


class Values(dict):
    """Something for each placeholder of advice."""

    def __missing__(self, key):
        return "x"


RUN = Values(
    run="k3f9q2",
    rank="0",
    attempt=1,
    time="4h",
    restarts=4,
    page="adapt",
    memory="--set resources.mem=20G (for each rank)",
    here="serried run --nodes 1 --ranks 2 -- python train.py",
)
STEPS = sorted({step for advice in (*ADVICE.values(), *WARNINGS.values()) for step in advice.steps})
WORDS = "(?:'[^']*'|[^;,()`…'])+"
OFFERED = re.compile(rf"serried ((?!clusters lists)(?:{'|'.join(VERBS)}) {WORDS})|: (--{WORDS})")


@for_each("step", [step for step in STEPS if OFFERED.search(step.format_map(RUN))])
def test_each_command_in_advice_takes_its_options_here_and_on_a_cluster(step: str):
    for verb in ("submit", "run"):
        for words, flags in OFFERED.findall(step.format_map(Values(RUN, command=verb))):
            line = re.sub(r"(--\w+) [A-Z]\b", r"\1 0", words or f"{verb} {flags}")  # `--rank N`
            parse(shlex.split(line))


def test_advice_has_commands():
    assert len([step for step in STEPS if OFFERED.search(step.format_map(RUN))]) > 40
