"""Why a job waits, in plain words."""

from __future__ import annotations

from serried.schedulers.slurm.commands import Slurm
from serried.schedulers.slurm.parse import REASONS
from serried.schema.reasons import NEVER_STARTS
from tables import for_each

SLURM = Slurm()
MANUAL_22_05 = [
    "AssociationJobLimit",
    "AssociationResourceLimit",
    "AssociationTimeLimit",
    "AssocMaxJobsLimit",
    "BadConstraints",
    "BeginTime",
    "Cleaning",
    "Dependency",
    "DependencyNeverSatisfied",
    "FrontEndDown",
    "InactiveLimit",
    "InvalidAccount",
    "InvalidQOS",
    "JobHeldAdmin",
    "JobHeldUser",
    "JobLaunchFailure",
    "Licenses",
    "NodeDown",
    "NonZeroExitCode",
    "PartitionDown",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "Priority",
    "Prolog",
    "QOSJobLimit",
    "QOSResourceLimit",
    "QOSTimeLimit",
    "QOSUsageThreshold",
    "ReqNodeNotAvail",
    "Reservation",
    "Resources",
    "SystemFailure",
    "TimeLimit",
    "JobArrayTaskLimit",
    "QOSGrpNodeLimit",
    "QOSGrpCpuLimit",
    "QOSGrpGRES",
    "QOSGrpGRESMinutes",
    "QOSMaxGRESPerUser",
    "QOSMaxJobsPerUserLimit",
    "QOSMaxCpuPerUserLimit",
    "QOSMaxMemoryPerJob",
    "QOSMinGRES",
    "QOSMaxWallDurationPerJobLimit",
    "AssocGrpCPUMinutesLimit",
    "AssocGrpGRES",
    "AssocGrpNodeLimit",
    "MaxGRESPerAccount",
    "MaxMemPerAccount",
    "AssocMaxGRESPerJob",
    "AssocMaxWallDurationPerJobLimit",
]


@for_each("reason", MANUAL_22_05)
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
