"""A script of bash with the launchers' functions and without: a real bash, and launchers that print what they get."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from serried.agent.launchers import shell_functions

pytestmark = pytest.mark.runs

LAUNCHER = """#!/bin/bash
printf '<%s>' {name} "$@"; echo
[[ -p /dev/stdin ]] && cat
echo "of {name}" >&2
case "$*" in *fail*) exit 7 ;; *die*) kill -TERM $$ ;; *wait*) trap 'echo usr1; exit 4' USR1; touch ready
while :; do sleep 0.1; done ;; esac
exit 0
"""


OF_THE_TESTER = ("BASH_ENV", "SERRIED_", "SLURM_", "PBS_", "TIMEFORMAT", "POSIXLY_CORRECT")


class Done(NamedTuple):
    status: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def place(tmp_path_factory, agent_command):
    """Runs a script both ways; `launches` and `failures` are the documents of the last one with the functions."""
    root = tmp_path_factory.mktemp("shims")
    shims = shell_functions.write(root / "shims", agent_command, "@none")
    (root / "real").mkdir()
    for name in ("srun", "torchrun", "mpirun"):
        (root / "real" / name).write_text(LAUNCHER.replace("{name}", name))
        (root / "real" / name).chmod(0o755)
    return ScriptPlace(root, shims)


class ScriptPlace:
    def __init__(self, root, shims) -> None:
        self.root, self.shims, self.count = root, shims, itertools.count()

    def run(self, text, *, shell=("bash",), functions=True, **variables):
        folder = self.root / str(next(self.count))
        folder.mkdir()
        (folder / "job.sh").write_text(text)
        real = f"{self.root / 'real'}:{os.environ['PATH']}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(OF_THE_TESTER)}
        environment["PATH"] = real
        self.launches_folder = self.root / f"{folder.name}-launches"
        if functions:
            path = f"{self.root / 'shims' / 'bin'}:{real}"
            own = {"PATH": path, "SERRIED_LAUNCHES": str(self.launches_folder)}
            environment.update({**self.shims, **own})
        environment.update(variables)
        done = subprocess.run(
            [*shell, "job.sh"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return Done(done.returncode, self._as_without(done.stdout), self._as_without(done.stderr))

    def _as_without(self, output):
        """Without the rank program and the id of the launch."""
        return re.sub(rf"<{self.root / 'shims' / 'rank'}><[0-9.]+>", "", output, flags=re.IGNORECASE)

    def both(self, text, **options):
        without = self.run(text, functions=False, **options)
        return self.run(text, **options), without

    def documents(self, pattern):
        return [json.loads(path.read_text()) for path in sorted(self.launches_folder.glob(pattern))]

    @property
    def handled(self):
        return [document["handled"] for document in self.documents("failures/*.json")]


CONTEXTS = {
    # what stands around a launch that fails, and whether bash counts the failure as handled
    "{}": False,
    "{} || true": True,
    "{} && true": True,
    "if {}; then echo yes; else echo no; fi": True,
    "if ! {}; then echo no; fi": True,
    "while {}; do echo never; done": True,
    "until ! {}; do echo never; done": True,
    "( {} )": False,
    "( {} ) || true": True,
    "{ {}; }": False,
    "{} | cat": False,
    "echo x | {} | cat": False,
    'x=$({}); echo "$x $?"': True,
    'x=$({}) || echo "$x $?"': True,
    "f() { {}; }; f": False,
    "f() { {}; echo in $?; }; f || echo out": True,
    "eval '{}'": False,
    "eval '{}' || echo or": True,
    "case x in x) {} ;; esac": False,
    "for i in 1; do {}; done": False,
    "{} <<< here": False,
    "{} > out; cat out": False,
    "true && {}": False,
    "{} & wait": False,
    "X=1 {}": False,
}  # fmt: skip
SETTINGS = ["set -eo pipefail", "set -uxE; IFS=,; trap 'echo ERR $? $LINENO' ERR; trap 'echo EXIT $?' EXIT"]


SHOW = 'show() { echo "status $? ${PIPESTATUS[*]} ${-//T}"; }'
"""Apart from the launch: a line after it that reads `$?` would handle its failure."""


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_a_script_behaves_as_without_and_failures_are_recorded(context, place):
    for setting in SETTINGS:
        line = context.replace("{}", "srun -n2 true fail")
        text = f"{SHOW}\n{setting}\n{line}\nshow\n"
        with_, without = place.both(text)
        if "ERR" in setting and context == "( {} )":  # bash replaces a subshell of one program by that program
            with_ = Done(with_.status, *(re.sub(r"(.*ERR 7 3\n)\1", r"\1", text) for text in with_[1:]))
        if "|" in context or "&" in context:  # the order of its processes is open
            with_, without = (done._replace(errors="".join(sorted(done.errors))) for done in (with_, without))
        assert with_ == without, setting
        assert place.handled == [CONTEXTS[context]], setting


@pytest.mark.parametrize(
    "line",
    [
        'srun -n1 echo "a b" "" \'$x\' "*"; echo $? $_',
        'command -v srun torchrun python; type -p mpirun; [ -x "$(command -v srun)" ] && echo there',
        "command -v horovodrun || echo none; type deepspeed >/dev/null 2>&1 || echo none",
        "$(which srun) true; ( command srun true )",
        "srun() { echo mine; }; srun -n2 true",
        "unset -f srun; srun true",
        "TIMEFORMAT=took; time srun true; nohup srun true",
        "timeout 60 srun true fail; env srun true; xargs srun <<< true",
        "exec srun true fail",
        "f() { echo $1; }; export -f f; srun bash -c 'f a'; timeout 60 srun bash -c 'f b'; exec srun bash -c 'f c'",
        "srun true & wait; srun true fail & wait; echo done",
        "echo in | srun cat; srun cat < job.sh | wc -l",
        "{ srun true die; } 2>/dev/null; echo $?",
        "srun true die & wait $!; echo $?",
        "set -o posix; srun true fail; echo $?",
        "mkdir bin; PATH=$PWD/bin:$PATH; echo 'echo other' > bin/srun; chmod +x bin/srun; srun true",
        "bash -c 'srun true fail'; echo $?; sh -c 'srun true fail'; echo $?",
        "real=$(dirname $(which srun)); env -i PATH=$real:/usr/bin:/bin bash -c 'srun true'; echo $?",
        "python -c 'import sys; print(sys.argv)' -m torch.distributed.run; python3 -c 'raise SystemExit(3)'; echo $?",
        "python() { echo mine; }; python x",
        "echo $(srun hostname -s) | tr a-z A-Z",
        "trap 'echo debug $BASH_COMMAND' DEBUG; srun true",
        "shopt -s expand_aliases\nalias srun='srun -v'\nsrun true",
        "RANDOM=4; srun true; echo $RANDOM",
        "nowhere; echo $?; horovodrun -np 1 true; echo $?",
        "set -e; which nowhere || echo none; if ! which nowhere; then echo none; fi; echo ${-//T}",
        "set -e; command false || echo no; command -v nowhere || echo none; command cat job.sh; echo ${-//T}",
        "set -e; python3 -c 'exit(3)' || echo $?; python3 -c 'exit(4)'; echo never",
        "set -e; command srun true fail || echo $?; command srun true fail; echo never",
        "command set -e; command eval 'false; echo never'",
    ],
)
def test_a_line_behaves_as_without(line, place):
    with_, without = place.both(line + "\n")
    assert with_ == without


@pytest.mark.parametrize(
    ("line", "handled"),
    [
        ("timeout 60 srun true fail", [False]),
        ("timeout -s TERM --kill-after 5 60 nice -n 3 srun true fail; echo end", [False]),
        ("env A=1 srun true fail || echo handled", [True]),
        ("env -u A srun true fail; code=$?", [True]),
        ("nohup srun true fail & wait", [False]),
        ("if nice srun true fail; then echo yes; fi", [True]),
        ("command srun true fail; echo end", [False]),
        ("command srun true fail || true", [True]),
        ("command timeout 5 srun true fail; echo end", [False]),
        ("echo 'true fail' | xargs srun", [False]),
        ("timeout 60 python3 -c 'exit(3)'; echo end", [False]),
        ("set -e; ! timeout 60 srun true fail; env srun true fail; echo never", [True, False]),
        ("timeout 1 srun true wait; echo end", []),  # the limit is the script's own
        ("timeout 60 grep srun /dev/null; env false; echo end", []),
    ],
)
def test_a_launch_fails_through_the_program_that_starts_it(line, handled, place):
    with_, without = place.both(line + "\n")
    assert with_ == without
    assert place.handled == handled
    calls = {launch["call"] for launch in place.documents("[0-9]*.json")}
    failures = [failure for failure in place.documents("failures/*.json") if "python3" not in failure["argv"]]
    assert calls >= {failure["call"] for failure in failures}
    assert "" not in calls


FAIL = "import os, sys; print(*sys.argv[1:]); os.kill(os.getpid(), 9) if 'kill' in sys.argv else sys.exit(3)"
PROGRAMS = rf"""
mkdir bin; ln -s {sys.executable} bin/snake; cp ../real/srun bin
cat > fail.py <<'END'
#!{sys.executable}
{FAIL}
END
cat > bin/long <<'END'
#!/bin/sh
'''exec' {sys.executable} "$0" "$@"
' '''
{FAIL}
END
printf '#!/bin/sh\nexit 3\n' > other; cp fail.py bin/on-path; chmod +x *.py other bin/*
"""


@pytest.mark.parametrize(
    ("line", "handled"),
    [
        ("./fail.py a; echo end", [False]),
        ("$PWD/fail.py a; echo end", [False]),
        ('p="${PWD}/fail.py"; "$p" "a b"; echo end', [False]),
        ("p=(./fail.py a); ${p[@]} b; echo end", [False]),
        (f"{sys.executable} fail.py; echo end", [False]),
        (f"A=1 {sys.executable} fail.py || echo handled", [True]),
        ("bin/snake fail.py; echo end", [False]),
        ("PATH=$PWD/bin:$PATH; on-path a; long b; echo end", [False, False]),
        ("set -- $(echo Train) -T x; trap 'echo \"RETURN CODE\"' EXIT; ./fail.py a; echo end", [False]),
        ('a=(./fail.py ./other); i=0; "${a[i++]}" x; echo $i', []),
        ("cp fail.py bin/pip; PATH=$PWD/bin:$PATH; pip install numpy; echo end", []),
        ("PATH=$PWD/bin:$PATH; on-path a; command -v on-path | wc -l; type on-path | wc -l", [False]),
        ("bin/srun true fail; echo end", [False]),
        ("./fail.py a | cat; echo end", [False]),
        ("./fail.py a & wait; echo end", [False]),
        ("./fail.py a & wait $!; echo $?", [True]),
        ("f() { ./fail.py a; echo in; }; f; echo end", [False]),
        ('f() { "$@"; }; f ./fail.py a || echo handled', [True]),
        ("( ./fail.py a; echo in ); echo end", [False]),
        ("if ./fail.py; then echo yes; fi; echo end", [True]),
        ("! ./fail.py; echo end", [True]),
        ("set -u; ./fail.py a; echo ${x-unset} $_", [False]),
        ("set -e; ./fail.py || echo no; ./fail.py; echo never", [False, True]),
        ("set -x; ./fail.py a; echo $_", [False]),
        ("timeout 60 ./fail.py; env ./fail.py || true", [False, True]),
        ("command ./fail.py; echo end", [False]),
        ("grep x /dev/null; test -e nothing; ./other; /bin/false; diff fail.py other >/dev/null; echo end", []),
        ("trap 'echo $BASH_COMMAND' DEBUG; f() { ./fail.py; }; f; trap -p", []),
        ("f() { trap 'echo return' RETURN; ./other; }; g() { echo g; }; f; g; trap", []),
        ("[[ ab =~ (a)b ]]; for i in 1 2; do false; echo $? $_; done; true | false; echo $_ ${BASH_REMATCH[1]}", []),
    ],
)
def test_a_python_fails_by_whatever_name_it_was_started(line, handled, place):
    without = place.run(PROGRAMS + line + "\n", functions=False)
    with_ = place.run(PROGRAMS + line + "\n")
    assert re.sub(rf"{place.root}/\d+", "", repr(with_)) == re.sub(rf"{place.root}/\d+", "", repr(without))
    assert sorted(place.handled) == handled


def test_a_killed_python_is_reported_with_the_line_of_the_script(place):
    with_, without = place.both(PROGRAMS + "./fail.py kill; echo $?\n")
    assert with_.output == without.output == "kill\n137\n"
    assert with_.errors.split() == [word for word in without.errors.split() if not word.isdigit()]


@pytest.mark.parametrize("traps", ["", "trap 'echo end' EXIT; trap 'echo mine' USR1\n"])
def test_a_signal_to_a_launch_in_the_background_reaches_the_launcher(place, traps):
    text = (
        traps + "srun true wait & pid=$!\nuntil [ -e ready ]; do sleep 0.1; done\nkill -USR1 $pid\nwait $pid; echo $?\n"
    )
    with_, without = place.both(text)
    assert with_ == without
    assert "usr1\n4\n" in with_.output
    assert [document["signalled"] for document in place.documents("failures/*.json")] == [True]


def test_the_bash_env_of_the_user_comes_first(place, tmp_path):
    own = tmp_path / "own"
    own.write_text("echo own; X=1")
    assert place.run("echo $X; srun true", SERRIED_USER_BASH_ENV=str(own)).output == "own\n1\nown\n<srun><true>\n"


def test_in_a_job_that_the_script_submits_there_are_no_functions(place):
    done = place.run("srun true; declare -F srun", SERRIED_SCRIPT_JOB="SLURM_JOB_ID=5", SLURM_JOB_ID="6")
    assert done.output == "<srun><true>\n"
    assert place.documents("*.json") == []


def test_launches_are_numbered_in_the_order_of_the_script(place):
    place.run("srun true a; mpirun -np 2 true b; python -m torch.distributed.run; srun --help; srun --pty true")
    launches = place.documents("*.json")
    assert [(launch["launch"], launch["name"], launch["program"], launch["untouched"]) for launch in launches] == [
        ("1", "srun", ["true", "a"], None),
        ("2", "mpirun", ["true", "b"], None),
        ("3", "srun", [], "option `--pty`"),
    ]


def test_a_note_is_printed_once(place):
    done = place.run("srun --pty true; srun --pty true")
    assert done.errors.count("serried:") == 1


def test_without_the_agents_python_launches_are_as_they_are(place, tmp_path):
    shims = shell_functions.write(tmp_path / "shims", ["/nowhere/python", "-I", "-S", "x.pyz"], "@none")
    text = "srun true fail; echo $?; timeout 60 srun true"
    done = place.run(text, PATH=f"{tmp_path}/shims/bin:{place.root / 'real'}:{os.environ['PATH']}", **shims)
    assert done.output == "<srun><true><fail>\n7\n<srun><true>\n"
