"""`#PBS` lines are read as qsub reads them."""

from __future__ import annotations

import pytest

from serried.base.errors import UsageError
from serried.schedulers.directives import Directive, Directives, Export, JobSize
from serried.schedulers.pbs import directives

SIMPLE = {"resources.nodes": 1, "resources.gpus": 0, "resources.ranks": 1}


def with_simple(settings):
    """Keys without a table are those of `resources`; None takes one away."""
    named = {key if "." in key else f"resources.{key}": value for key, value in settings.items()}
    return {key: value for key, value in (SIMPLE | named).items() if value is not None}


def read(*lines) -> Directives:
    return directives.read("\n".join(["#!/bin/bash", *lines, "mpirun true", ""]), file="train.pbs")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#PBS -q gpu -A lab"], [("-q", "gpu"), ("-A", "lab")]),
        (["   #PBS -qgpu", "# PBS -A x", "##PBS -A y", ":", ": text", "#PBS -p 5"], [("-q", "gpu"), ("-p", "5")]),
        (["#PBS -q gpu", "  :", "#PBS -A lab"], [("-q", "gpu")]),
        (["#PBS -q \\", "  gpu"], [("-q", "gpu")]),
        (["#PBS -hq gpu"], [("-h",), ("-q", "gpu")]),
        (["#PBS -q one", "#PBS -q two"], [("-q", "two")]),
        (["#PBS -l walltime=1:00", "#PBS -l walltime=2:00"], [("-l", "walltime=1:00")]),
        (
            ["#PBS -l select=1:ncpus=2,walltime=1:00 -l filesystems=home:eagle", "#PBS -l storage=gdata/a+scratch/b"],
            [
                ("-l", "select=1:ncpus=2"),
                ("-l", "walltime=1:00"),
                ("-l", "filesystems=home:eagle"),
                ("-l", "storage=gdata/a+scratch/b"),
            ],
        ),
        (["#PBS -l 'note=\"a,b\"',wd"], [("-l", 'note="a,b"'), ("-l", "wd")]),
        (
            ["#PBS -W depend=afterok:1:2,group_list=lab,stagein=a@h:b,c@h:d -W umask=022 -W block=true"],
            [("-W", "group_list=lab"), ("-W", "stagein=a@h:b,c@h:d")],
        ),
        (["#PBS -P proj01 -a 1200 -c n -u me -m abe -M a@b"], None),
        (["#PBS -N x -o a -e b -j oe -k oed -R oe -r y -J 0-3 -v A=1 -V -S /bin/sh -C '#X' -z -f"], []),
    ],
)
def test_words(lines, expected):
    result = [option.words for option in read(*lines).options]
    if expected is None:
        expected = [tuple(pair) for pair in zip(*[iter(lines[0].split()[1:])] * 2, strict=True)]
    assert result == expected


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("#PBS -l walltime=0:2:0   # comment", "qsub has no use for the word `#`", "a comment needs a line of its own"),
        ("#PBS -q gpu two", "qsub has no use for the word `two`", "options begin with a dash"),
        ("#PBS -N 'a", "qsub finds an unmatched quote", "close the quote on the same line"),
        ("#PBS -q", "`-q` needs a value", None),
        ("#PBS -Y", "qsub has no option `-Y`", None),
        ("#PBS -I", "the script asks for an interactive job", "`serried shell` opens a shell in a job"),
        (
            "#PBS -W interactive=true",
            "the script asks for an interactive job",
            "`serried shell` opens a shell in a job",
        ),
        ("#PBS -l =3", "`-l =3` is not a list of resources", "`-l walltime=1:00:00`"),
        ("#PBS -W nonsense", "`-W nonsense` is not a list of attributes", "`-W group_list=lab`"),
        ("#PBS -l walltime=abc", "`walltime=abc` is not a time limit", "`-l walltime=2:30:00`"),
        ("#PBS -l select=0", "`select=0`: qsub expects at least one chunk", None),
        ("#PBS -l select=1:ncpus=x", "`ncpus=x`: qsub expects a number", None),
        ("#PBS -l select=1:mem=lots", "`mem=lots` is not an amount of memory", "`mem=64gb`"),
        ("#PBS -r maybe", "`-r maybe`: qsub expects `y` or `n`", None),
        ("#PBS -r n -J 0-3", "qsub does not accept an array that cannot be rerun", "remove `-r n`"),
        ("#PBS -j both", "`-j both` is not a way to join logs", "`-j oe`"),
    ],
)
def test_what_qsub_refuses_is_refused_with_the_line(line, message, hint):
    with pytest.raises(UsageError) as refused:
        read("# a comment", line)
    assert (refused.value.message, refused.value.hint) == (f"line 3 of `train.pbs`: {message}", hint)


@pytest.mark.parametrize(
    ("line", "settings", "size"),
    [
        (
            "-l select=2:ncpus=16:mpiprocs=4:ngpus=4:mem=64gb:gpu_type=a100 -l place=scatter:excl",
            {
                "nodes": 2,
                "gpus": 4,
                "ranks": 4,
                "cpus": 4,
                "mem_per_node": "64G",
                "gpu_type": "a100",
                "exclusive": True,
            },
            JobSize(2, 8, 4, 16),
        ),
        ("-l select=2:ncpus=8:ngpus=2", {"nodes": 2, "gpus": 2, "cpus": 4}, JobSize(1, 2, 4, 16)),
        (
            "-l select=4:ncpus=2:mem=512mb -l place=pack",
            {"ranks": 4, "cpus": 2, "mem_per_node": "2G"},
            JobSize(1, 4, 0, 8),
        ),
        ("-l select=2:system=polaris -l place=scatter", {"nodes": 2, "constraint": ["system=polaris"]}, JobSize(2, 2)),
        ("-l select=ncpus=8:ompthreads=8", {"cpus": 8}, JobSize(1, 1, 0, 8)),
        (
            "-l nodes=2:ppn=4:gpus=2:fast#excl -l mem=8gb",
            {
                "nodes": 2,
                "gpus": 2,
                "ranks": 4,
                "cpus": 2,
                "mem_per_node": "4G",
                "exclusive": True,
                "constraint": ["fast"],
            },
            JobSize(2, 8, 2, 4),
        ),
        ("-l nodes=n1:ppn=2+n2:ppn=2", {"nodes": 2, "ranks": 2, "cpus": 1}, None),
        ("-l ncpus=48,mem=190GB,ngpus=4,wd", {"gpus": 4, "cpus": 12, "mem_per_node": "190G"}, JobSize(1, 1, 4, 48)),
        ("-l walltime=90", {"time": "1m30s"}, None),
        ("-l walltime=1:30", {"time": "1m30s"}, None),
        ("-l walltime=100:00:00", {"time": "4d4h"}, None),
        ("-l walltime=1:00:00:00", {"time": "1d"}, None),
        ("-l walltime=00:01:00.5", {"time": "1m1s"}, None),
        (
            "-A lab -q gpu -M a@b -m abe",
            {"account": "lab", "partition": "gpu", "mail_user": "a@b", "mail_type": ["ALL"]},
            None,
        ),
        ("-m n", {"mail_type": ["NONE"]}, None),
    ],
)
def test_settings(line, settings, size):
    result = read(f"#PBS {line}")
    assert result.settings == with_simple(settings)
    assert size is None or result.size == size


def test_fields_that_serried_owns():
    result = read(
        "#PBS -N job -o logs/ -e err -J 0-9:2 -W depend=afterok:1,max_run_subjobs=3 -r y",
        "#PBS -S /bin/csh@n1,/bin/sh -l wd",
    )
    assert result == Directives(
        options=(Directive(("-l", "wd"), (), 3),),
        settings=SIMPLE,
        name="job",
        output="logs/",
        error="err",
        array="0-9:2%3",
        dependency="afterok:1",
        requeues=True,
        umask=0o077,
        shell="/bin/csh",
        chdir=".",
        export=Export("none", {}, has_login=True),
    )


@pytest.mark.parametrize(
    ("join", "expected"), [("oe", ("out", None)), ("eo", ("err", None)), ("n", ("out", "err")), (None, ("out", "err"))]
)
def test_joined_logs(join, expected):
    result = read("#PBS -o out -e err", f"#PBS -j {join}" if join else "#")
    assert (result.output, result.error) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#PBS -V", Export("all", {}, has_login=True)),
        ("#PBS -V -v A=1", Export("all", {"A": "1"}, has_login=True)),
        ("#PBS -v HOME,A=1", Export(("HOME",), {"A": "1"}, has_login=True)),
        ("#PBS -v 'A=\"x,y\",B='", Export("none", {"A": "x,y", "B": ""}, has_login=True)),
    ],
)
def test_export(line, expected):
    assert read(line).export == expected


def test_flags_of_serried_replace_the_directives_of_the_size_as_a_whole():
    result = read("#PBS -l select=2:ncpus=4 -l place=scatter -l walltime=1:00 -l filesystems=home")
    expected = [True, True, False, False]
    assert [bool({"nodes", "gpus", "exclusive"} & set(option.keys)) for option in result.options] == expected
    assert result.options[2].keys == ("time",)


def test_notes_name_what_is_not_honoured():
    result = read("#PBS -t 0-3 -W block=true -l select=1:ncpus=1+2:ncpus=4", "echo", "#PBS -q x")
    assert result.notes == (
        "line 2: Serried does not pass `-W block` on; `serried wait` waits for the run",
        "line 2: the index is in PBS_ARRAY_INDEX, and in PBS_ARRAYID under Torque only",
        "line 2: the nodes differ; on another cluster, each gets what the largest has here",
        "line 4: `qsub` ignores directives after the first command of the script",
    )
    assert result.settings == SIMPLE | {"resources.nodes": 3, "resources.cpus": 4}


@pytest.mark.parametrize(
    ("line", "expected"),
    [("#PBS -q gpu", 0o077), ("#PBS -W umask=22", 0o022), ("#PBS -W group_list=a,umask=0027", 0o027)],
)
def test_a_script_has_the_umask_of_pbs(line, expected):
    assert read(line).umask == expected


def test_variables_that_are_not_set_are_refused_as_qsub_refuses_them():
    """`A="x,y"` in a directive loses its quotes, so `y` is a variable."""
    text = '#!/bin/bash\n#PBS -v FOO,A="x,y"\n'
    assert directives.read(text, None).export.inherit == ("FOO", "y")
    with pytest.raises(UsageError, match="line 2 of `the script`: `y` in `-v` is not set"):
        directives.read(text, {"FOO": ""})
