"""Values in commands: options that go where there is no value, and quotes in lines for bash."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from serried.agent.ranks.command_placeholders import fill_shell, fill_words
from tables import for_each

HOSTILE = """a b'c"d$(id)`id`\\e\\\\ !f*#{rank}"""


@for_each(
    ("words", "first", "later"),
    [
        (["--ckpt={resume}"], ["--ckpt="], ["--ckpt=/c/1"]),
        (["{resume:--resume_from_checkpoint=}"], [], ["--resume_from_checkpoint=/c/1"]),
        (["{resume:ckpt_path=}"], [], ["ckpt_path=/c/1"]),
        (["{resume?--resume}", "{resume:}"], [], ["--resume", "/c/1"]),
        (["{resume?--init_from=resume}"], [], ["--init_from=resume"]),
        (["x{resume:-}y"], ["xy"], ["x-/c/1y"]),
        (["{resume}"], [""], ["/c/1"]),
        (["{{resume}}"], ["{resume}"], ["{resume}"]),
        (["{seed:--seed=}"], ["--seed=0"], ["--seed=0"]),
        (["{rank:03d} {rank:>5} ${resume:--x} {nothing:--y=}"],) * 3,
    ],
)
def test_an_option_without_a_value_goes(words, first, later):
    values = {"seed": "0", "rank": "3"}
    assert fill_words(words, {**values, "resume": ""}) == first
    assert fill_words(words, {**values, "resume": "/c/1"}) == later


def printed(line):
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    return done.stdout.decode()


PLACES = {
    "plain": "printf %s {resume}",
    "after a comment": "# don't\nprintf %s {resume}",
    "in double quotes": 'printf %s "{resume}"',
    "in single quotes": "printf %s '{resume}'",
    "after $'…'": ": $'it\\'s '; printf %s \"{resume}\"",
    "inside $'…'": "printf %s $'{resume}'",
    "in a substitution within quotes": "printf %s \"$(printf %s '{resume}')\"",
    "in an assignment in quotes": 'export "A={resume}"; printf %s "$A"',
    "after an escaped quote": "printf %s {resume}; : \\' \"\\\"\" '{rank}'",
    "in a here-document": "cat <<END | head -c -1\n{resume}\nEND\n: it is '{rank}'",
    "in a quoted here-document": "cat <<'END' | head -c -1\n{resume}\nEND",
    "after a here-document with a quote in it": "cat <<END >/dev/null\ndon't\nEND\nprintf %s {resume}",
}


@for_each("line", PLACES.values())
def test_a_value_arrives_in_bash_as_it_is_whatever_quotes_it_stands_in(line):
    assert printed(fill_shell(line, {"resume": HOSTILE, "rank": "3"})) == HOSTILE
    assert printed(fill_shell(line, {"resume": "", "rank": "3"})) == ""


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20))
def test_any_value_arrives_in_double_quotes(value):
    line = 'printf "%s|" "A={resume}" \'{resume}\' {resume:--r=} "{resume:--r=}"'
    expected = f"A={value}|{value}|--r={value}|--r={value}|" if value else "A=|||"
    assert printed(fill_shell(line, {"resume": value})) == expected


def test_an_option_without_a_value_goes_in_bash_too():
    line = 'set -- a {resume:--from=} "b"; echo $#'
    assert printed(fill_shell(line, {"resume": ""})) == "2\n"
    assert printed(fill_shell(line, {"resume": "c d"})) == "3\n"
