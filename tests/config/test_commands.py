"""Commands, and where they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolving import BARE, refusal, resolve


def test_a_command_typed_in_a_subfolder_runs_there_and_an_experiment_at_the_top(folder: Path):
    (folder / "serried.toml").write_text("[experiments.a]\ncommand = 'a'")
    (folder / "sub" / "folder").mkdir(parents=True)
    bare = resolve(folder / "sub" / "folder", command=BARE)
    named = resolve(folder / "sub" / "folder", name="a")
    expected = (str(folder), "sub/folder", "../../serried.toml")
    assert (bare.project.directory, bare.experiment.workdir, bare.project.file) == expected
    assert (named.project.directory, named.experiment.workdir) == (str(folder), ".")


def test_a_command_for_a_shell_stays_one_line(folder: Path):
    found = resolve(folder, "[experiments.a]\ncommand = 'echo $HOME | wc'\nshell = true")
    assert (found.experiment.command, found.warnings) == (("echo $HOME | wc",), ())


def test_a_list_of_words_is_no_line_for_a_shell(folder: Path):
    text = "[experiments.a]\ncommand = ['echo', 'x']\nshell = true"
    assert (
        refusal(folder, text)[0] == "serried.toml:3: `shell` needs one line of text, and the command is a list of words"
    )


def test_words_after_the_dashes_are_no_line_for_a_shell_whatever_the_experiment_says(folder: Path):
    found = resolve(folder, "[experiments.a]\ncommand = 'x'\nshell = true", name="a", command=("echo", "a b"))
    assert (found.experiment.command, found.experiment.shell) == (("echo", "a b"), False)


def test_a_variable_that_no_shell_fills_in_is_pointed_out(folder: Path):
    found = resolve(folder, command=("python", "train.py", "--data", "$SLURM_TMPDIR/x"))
    (warning,) = found.warnings
    assert warning == (
        "no shell expands `$SLURM_TMPDIR` in the command: use a placeholder such as `{data}` or `{results}`, "
        "or set `shell = true`"
    )


def test_what_only_a_shell_understands_is_pointed_out(folder: Path):
    found = resolve(folder, "[experiments.a]\ncommand = 'make && train > log 2>&1'", name="a")
    assert found.warnings == tuple(
        f"no shell reads `{word}` in the command: the program gets `{word}` as an argument, unless `shell = true`"
        for word in ("&&", "2>&1")
    )
    for text in ("command = 'make && train'\nshell = true", "command = 'bash -c \"make && train\"'", "command = 'a >'"):
        assert resolve(folder, f"[experiments.a]\n{text}", name="a").warnings == ()


def test_a_preparation_that_wants_a_shell_is_refused_before_it_makes_folders_of_its_words(folder: Path):
    text = "[experiments.a]\ncommand = 'x'\ndata.prepare = 'mkdir -p {data}/a && fetch > {data}/a/b'"
    message, hint = refusal(folder, text)
    assert message == "serried.toml:3: `data.prepare` contains `&&`, and no shell reads the command"
    assert hint == 'for a shell: `["bash", "-c", "…"]`; in a list of words, each word is an argument'
    as_words = text.replace("'mkdir -p {data}/a && fetch > {data}/a/b'", "['echo', '&&']")
    assert resolve(folder, as_words, name="a").experiment.data.prepare == ("echo", "&&")


HOSTILE = ["it's", "a b", "é☃", "$(id)", "-rf", "a\\b", "x#y", "%j", "a\nb", "n" * 300, "trailing ", "a/../../b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_kept_as_they_are(folder: Path, name: str):
    import json

    quoted = json.dumps(name)
    found = resolve(folder, f"[project]\nname = {quoted}\n[experiments.{quoted}]\ncommand = [{quoted}]")
    assert (found.project.name, found.experiment.name, found.experiment.command) == (name, name, (name,))


def test_a_nul_character_can_be_given_to_no_program(folder: Path):
    message, _ = refusal(folder, '[experiments.a]\ncommand = ["a", "b\\u0000c"]')
    assert message == "serried.toml:2: `experiments.a.command` must not contain a NUL character"


def test_the_names_that_an_env_file_defines_are_known_and_its_values_are_not(folder: Path):
    (folder / ".env").write_text("WANDB_API_KEY='canary'\nexport B=2\n")
    found = resolve(folder, "[defaults.environment]\nenv_file = '.env'", command=BARE)
    environment = found.experiment.environment.planned
    assert (environment.env_file_path, environment.env_file) == (str(folder / ".env"), ("WANDB_API_KEY", "B"))
    assert "canary" not in repr(found)
