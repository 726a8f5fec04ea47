"""What Slurm prints, in the shapes of 20.11 to 25.05. `|` stands for the unit separator.

The tables of 22.05 are recorded from the lab. The others follow the manual pages of their release: 20.11 cuts no
field that has no width, 23.02 prints `exit_code` as `status:signal`, 24.05 adds states.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.schedulers.client import SubmitOutcome
from serried.schedulers.interface import Job
from serried.schedulers.slurm import parse
from serried.schedulers.slurm.commands import Slurm
from serried.schedulers.slurm.parse import REASONS, submit_outcome
from serried.schema import names, successor_commands
from serried.schema.reasons import NEVER_STARTS
from tables import for_each

NAME = "train-k3f9q2-1"


def said(table):
    return table.replace("|", parse.SEPARATOR)


def read(parser, table):
    """The jobs in `table`, in whose rows the name alone is missing, as if they had none."""
    end = parse.SEPARATOR if parser is parse.queue else ""
    rows = (f"{row.removesuffix(end)}{parse.SEPARATOR}{NAME}{end}\n" for row in table.splitlines())
    jobs = parser("".join(rows))
    assert {job.name for job in jobs} == {NAME}
    return [job._replace(name="") for job in jobs]


QUEUE_22_05 = said("""\
5|0|CANCELLED|None|15|1795232880|1795232883|0|n1|
10|N/A|CANCELLED|None|15|1795232880|1795232883|0|n1|
1|N/A|COMPLETED|None|0|1795232880|1795232880|0|n1|
2|N/A|FAILED|NonZeroExitCode|768|1795232880|1795232880|0|n1|
3|N/A|FAILED|JobLaunchFailure|9|1795232880|1795232880|0|n1|
5|16-20:2%2|PENDING|JobArrayTaskLimit|0|N/A|N/A|0||
7|N/A|PENDING|BeginTime|0|1795236480|NONE|0||
8|N/A|PENDING|DependencyNeverSatisfied|0|N/A|N/A|0||
9|N/A|PENDING|BeginTime|0|1795232894|NONE|1||
6|N/A|PENDING|JobHeldUser|0|N/A|N/A|0||
4|N/A|RUNNING|None|0|1795232880|1826768880|0|n[1-2]|
5|4|RUNNING|None|0|1795232883|NONE|0|n2|
""")


def test_a_recorded_queue_is_read_as_it_stands():
    ended = 1795232883.0
    waits = {"raw": "PENDING", "reason": "JobArrayTaskLimit"}
    assert read(parse.queue, QUEUE_22_05) == [
        Job("5", 0, names.CANCELLED, "CANCELLED", exit_code=0, signal=15, ended=ended, nodes=("n1",)),
        Job("10", None, names.CANCELLED, "CANCELLED", exit_code=0, signal=15, ended=ended, nodes=("n1",)),
        Job("1", None, names.COMPLETED, "COMPLETED", exit_code=0, ended=1795232880.0, nodes=("n1",)),
        Job("2", None, names.FAILED, "FAILED", "NonZeroExitCode", 3, ended=1795232880.0, nodes=("n1",)),
        Job("3", None, names.FAILED, "FAILED", "JobLaunchFailure", 0, 9, ended=1795232880.0, nodes=("n1",)),
        Job("5", 16, names.PENDING, **waits),
        Job("5", 18, names.PENDING, **waits),
        Job("5", 20, names.PENDING, **waits),
        Job("7", None, names.PENDING, "PENDING", "BeginTime", starts=1795236480.0),
        Job("8", None, names.PENDING, "PENDING", "DependencyNeverSatisfied"),
        Job("9", None, names.PENDING, "PENDING", "BeginTime", starts=1795232894.0, restarts=1),
        Job("6", None, names.PENDING, "PENDING", "JobHeldUser"),
        Job("4", None, names.RUNNING, "RUNNING", nodes=("n1", "n2")),
        Job("5", 4, names.RUNNING, "RUNNING", nodes=("n2",)),
    ]


ACCOUNTS_22_05 = said("""\
1|COMPLETED|0:0|1795232880|n1
2|FAILED|3:0|1795232880|n1
3|FAILED|0:9|1795232880|n1
4|RUNNING|0:0|Unknown|n[1-2]
9|REQUEUED|0:0|1795232883|n1
10|CANCELLED by 0|0:0|1795232883|n1
5_0|CANCELLED by 0|0:0|1795232883|n1
5_2|RUNNING|0:0|Unknown|n1
""")


def test_recorded_accounts_are_read_as_they_stand():
    assert read(parse.accounting, ACCOUNTS_22_05) == [
        Job("1", None, names.COMPLETED, "COMPLETED", exit_code=0, ended=1795232880.0, nodes=("n1",)),
        Job("2", None, names.FAILED, "FAILED", exit_code=3, ended=1795232880.0, nodes=("n1",)),
        Job("3", None, names.FAILED, "FAILED", exit_code=0, signal=9, ended=1795232880.0, nodes=("n1",)),
        Job("4", None, names.RUNNING, "RUNNING", nodes=("n1", "n2")),
        Job("9", None, names.PENDING, "REQUEUED", nodes=("n1",)),
        Job("10", None, names.CANCELLED, "CANCELLED by 0", exit_code=0, ended=1795232883.0, nodes=("n1",)),
        Job("5", 0, names.CANCELLED, "CANCELLED by 0", exit_code=0, ended=1795232883.0, nodes=("n1",)),
        Job("5", 2, names.RUNNING, "RUNNING", nodes=("n1",)),
    ]


@pytest.mark.parametrize(
    ("row", "job"),
    [
        pytest.param(
            "81234|[3-9%2]|PENDING|Priority|0|N/A|N/A|0||",
            [Job("81234", index, names.PENDING, "PENDING", "Priority") for index in range(3, 10)],
            id="20.11: brackets around pending tasks",
        ),
        pytest.param(
            "81234|N/A|FAILED|NonZeroExitCode|3:0|1700000000|1700000060|0|gpu-a[01-02],login|",
            [
                Job(
                    "81234", None, names.FAILED, "FAILED", "NonZeroExitCode", 3,
                    ended=1700000060.0, nodes=("gpu-a01", "gpu-a02", "login"),
                )
            ],
            id="23.02: exit_code as status and signal",
        ),
        pytest.param(
            "81234|N/A|COMPLETING|None|0|1700000000|1700000060|0|n1|",
            [Job("81234", None, names.RUNNING, "COMPLETING", nodes=("n1",))],
            id="a completing job has processes still",
        ),
        pytest.param(
            "81234|N/A|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-4]|0|N/A|N/A|0||",
            [Job("81234", None, names.PENDING, "PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-4]")],
            id="a reason with spaces and commas",
        ),
        pytest.param(
            "81234|N/A|EXPEDITING|None|0:0|N/A|N/A|0|(null)|",
            [Job("81234", None, names.PENDING, "EXPEDITING")],
            id="25.05: expedited requeue",
        ),
        pytest.param(
            "81234|N/A|QUANTUM_FOAM|None|0|N/A|N/A|0||",
            [Job("81234", None, names.UNKNOWN, "QUANTUM_FOAM")],
            id="a word that no Slurm has said yet",
        ),
    ],
)  # fmt: skip
def test_rows_of_other_releases_are_read(row, job):
    assert read(parse.queue, said(row + "\n")) == job


@for_each(
    ("words", "expected"),
    [
        (["CANCELLED by 1000"], names.CANCELLED),
        (["RUNNING+", "SUSPENDED", "SIGNALING"], names.RUNNING),
        (["OUT_OF_MEMORY"], names.OUT_OF_MEMORY),
        (["NODE_FAIL", "BOOT_FAIL"], names.NODE_FAIL),
        (["DEADLINE", "TIMEOUT"], names.TIMEOUT),
        (["PREEMPTED"], names.PREEMPTED),
        (["REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"], names.PENDING),
        (["LAUNCH_FAILED"], names.LAUNCH_FAILED),
        (["OUT_OF_ME+", "", "  "], names.UNKNOWN),
    ],
)
def test_every_word_for_a_state_has_one_meaning_and_no_word_is_a_success_by_default(words, expected):
    assert {parse.state(word) for word in words} == {expected}


def test_only_completed_means_completed():
    assert [word for word, ours in successor_commands.STATES.items() if ours == names.COMPLETED] == ["COMPLETED"]


@for_each(
    ("stdout", "job"),
    [
        ("123\n", "123"),
        ("123;fir\n", "123"),
        ("Welcome to fir\n\n2026\n*** purge on Monday ***\n123\n", "123"),
        ("123\nThank you for flying fir.\n", "123"),
        ("Submitted batch job 123\n", None),
        ("", None),
        ("12 3\n", None),
        ("-1\n", None),
    ],
)
def test_the_id_is_the_last_line_that_is_one(stdout, job):
    assert successor_commands.new_id(stdout, Slurm.id_pattern) == job


def test_names_with_separators_and_newlines_spoil_their_own_rows_alone():
    table = said("11|ev|il\n9|x|y|\n12_3|train-k3f9q2-1|\n13+1|het|\nnonsense\n")
    expected = [("11", said("ev|il")), ("9", said("x|y")), ("12", "train-k3f9q2-1"), ("13", "het")]
    assert parse.named(table) == expected


@given(st.text())
def test_no_output_makes_the_parsers_fail(text):
    for read in (parse.queue, parse.accounting, parse.named):
        read(text)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=10, max_size=10))
def test_no_row_makes_the_parsers_fail(fields):
    parse.queue(parse.SEPARATOR.join([*fields, ""]))
    parse.accounting(parse.SEPARATOR.join(fields[:6]))


FAILED = "sbatch: error: Batch job submission failed: "

RECORDED_22_05 = [
    "sbatch: error: invalid partition specified: nope\n" + FAILED + "Invalid partition name specified\n",
    FAILED + "Requested node configuration is not available\n",
    FAILED + "Invalid job array specification\n",
    "sbatch: error: Memory specification can not be satisfied\n"
    + FAILED
    + "Requested node configuration is not available\n",
    FAILED + "Invalid feature specification\n",
    FAILED + "Requested reservation is invalid\n",
    FAILED + "Invalid license specification\n",
    FAILED + "Job dependency problem\n",
    FAILED + "Invalid node name specified\n",
    "sbatch: error: Invalid --time specification\n",
    "sbatch: unrecognized option '--frob'\nTry \"sbatch --help\" for more information\n",
    "sbatch: error: Invalid --mail-type specification\n",
    'sbatch: error: Invalid numeric value "0" for --cpus-per-task.\n',
    "sbatch: error: Invalid generic resource (gres) specification\n",
    "Invalid time specification (pos=0): zz\nsbatch: error: Invalid --begin specification\n",
    "sbatch: error: Unable to open file /nonexist\n",
    "sbatch: error: Batch script is empty!\n",
]

FROM_THE_SOURCES = [
    FAILED + "Invalid account or account/partition combination specified",
    FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    FAILED + "Requested time limit is invalid (missing or exceeds some limit)",
    FAILED + "User's group not permitted to use this partition",
    FAILED + "Access/permission denied",
    FAILED + "Invalid qos specification",
    FAILED + "More processors requested than permitted",
    "sbatch: error: lua: please name your account with -A\n" + FAILED + "Unspecified error",
]


NOT_DELIVERED = [
    FAILED + "Unable to contact slurm controller (connect failure)",
    "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source",
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
]
ALL_ELSE = [
    "",
    FAILED + "Socket timed out on send/recv operation",
    FAILED + "Unable to contact slurm controller (receive failure)",
    FAILED + "Unable to contact slurm controller (send failure)",
    FAILED + "Zero Bytes were transmitted or received",
    FAILED + "Unexpected message received",
    FAILED + "Transport endpoint is not connected",
    FAILED + "a sentence of Slurm 31.11",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    "Killed",
]


@for_each(
    ("outcome", "answers"),
    [
        (SubmitOutcome.REFUSED, RECORDED_22_05 + FROM_THE_SOURCES),
        (SubmitOutcome.UNREACHABLE, NOT_DELIVERED),
        (SubmitOutcome.UNCERTAIN, ALL_ELSE),
    ],
)
def test_a_failed_submission_was_refused_or_not_delivered_or_is_uncertain(outcome, answers):
    assert [stderr for stderr in answers if submit_outcome(stderr) is not outcome] == []


SLURM = Slurm()
MANUAL_22_05 = """
AssociationJobLimit AssociationResourceLimit AssociationTimeLimit AssocMaxJobsLimit BadConstraints BeginTime Cleaning
Dependency DependencyNeverSatisfied FrontEndDown InactiveLimit InvalidAccount InvalidQOS JobHeldAdmin JobHeldUser
JobLaunchFailure Licenses NodeDown NonZeroExitCode PartitionDown PartitionInactive PartitionNodeLimit
PartitionTimeLimit Priority Prolog QOSJobLimit QOSResourceLimit QOSTimeLimit QOSUsageThreshold ReqNodeNotAvail
Reservation Resources SystemFailure TimeLimit JobArrayTaskLimit QOSGrpNodeLimit QOSGrpCpuLimit QOSGrpGRES
QOSGrpGRESMinutes QOSMaxGRESPerUser QOSMaxJobsPerUserLimit QOSMaxCpuPerUserLimit QOSMaxMemoryPerJob QOSMinGRES
QOSMaxWallDurationPerJobLimit AssocGrpCPUMinutesLimit AssocGrpGRES AssocGrpNodeLimit MaxGRESPerAccount
MaxMemPerAccount AssocMaxGRESPerJob AssocMaxWallDurationPerJobLimit
"""


@for_each("reason", MANUAL_22_05.split())
def test_the_manual_s_reasons_have_a_sentence(reason):
    assert not SLURM.explain(reason).startswith("Slurm reports")


@for_each(
    ("reason", "sentence"),
    [
        ("Priority", "other jobs in the queue come first"),
        ("(Resources)", "it is next in line; the resources that it requests are in use"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-4]",
            "nodes that it needs are down, drained or reserved, often for maintenance before it could end",
        ),
        ("QOSMaxGRESPerUser", "your jobs hold as many GPUs as this QoS allows a user"),
        ("AssocGrpGRESMinutes", "your group's account has used up its hours for now"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "nodes that it needs are down, drained or reserved for jobs of higher priority",
        ),
        ("", "Slurm has not looked at it yet"),
        ("MoonPhase", "Slurm reports `MoonPhase`"),
    ],
)
def test_a_reason_becomes_a_sentence_and_an_unknown_one_is_quoted(reason, sentence):
    assert SLURM.explain(reason) == sentence


def test_no_row_is_hidden_by_an_earlier_one():
    hidden = [
        pattern
        for place, (pattern, _, sentence) in enumerate(REASONS)
        if SLURM.explain(pattern.replace("*", "")) != sentence
        and pattern.replace("*", "") not in [other for other, _, _ in REASONS[:place]]
        and "*" not in pattern
    ]
    assert hidden == []


def test_what_never_starts_as_it_is_says_so():
    never = {token for token, _, sentence in REASONS if "never starts like this" in sentence}
    assert {token for token in never if SLURM.classify(token) not in NEVER_STARTS} == set()
    others = ("Priority", "Resources", "QOSMaxJobsPerUserLimit", "PartitionNodeLimit", "None")
    assert not any(SLURM.classify(word) in NEVER_STARTS for word in others)
