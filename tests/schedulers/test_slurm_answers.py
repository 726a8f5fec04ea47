"""What an sbatch that failed leaves behind: a wrong `refused` would start a second job."""

from __future__ import annotations

from serried.schedulers.client import SubmitOutcome
from serried.schedulers.slurm.parse import submit_outcome
from tables import for_each

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


@for_each("stderr", RECORDED_22_05 + FROM_THE_SOURCES)
def test_what_was_read_and_refused_is_refused(stderr):
    assert submit_outcome(stderr) is SubmitOutcome.REFUSED


@for_each(
    "stderr",
    [
        FAILED + "Unable to contact slurm controller (connect failure)",
        "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source",
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
    ],
)
def test_what_was_not_delivered_is_unreachable(stderr):
    assert submit_outcome(stderr) is SubmitOutcome.UNREACHABLE


@for_each(
    "stderr",
    [
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
    ],
)
def test_everything_else_is_uncertain(stderr):
    assert submit_outcome(stderr) is SubmitOutcome.UNCERTAIN
