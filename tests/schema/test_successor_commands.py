"""The words for the state of a job, and how a job asks for them."""

from __future__ import annotations

import subprocess

import pytest

from serried import schedulers
from serried.schema import names, successor_commands

ANSWERS = [
    (0, "    job_state = F\n    substate = 92", (0, "COMPLETED")),
    (0, "    job_state = F\n    substate = 91", (0, "CANCELLED")),
    (0, "    job_state = R\n    comment = Job was sent for execution and terminated by root@head", (0, "CANCELLED")),
    (0, "    job_state = R\n    substate = 42", (0, "RUNNING")),
    (0, "    job_state = H\n    substate = 22", (0, "PENDING")),
    (153, "qstat: Unknown Job Id 7.head", (0, "")),
    (255, "Connection refused\nqstat: cannot connect to server head (errno=15010)", (1, "")),
]


@pytest.mark.parametrize(("status", "said", "word"), ANSWERS, ids=lambda value: str(value)[:30])
def test_pbs_is_asked_also_where_no_path_has_its_programs(status, said, word, tmp_path):
    """What PBS starts, a small job and what runs on a job's other nodes, has a PATH without them."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "qstat"
    program.write_text(f'#!/bin/bash\n[[ $* == "-x -f -w 7[3].head" ]] || exit 9\necho "{said}"\nexit {status}\n')
    program.chmod(0o700)

    done = subprocess.run(
        successor_commands.query(schedulers.traits("pbs").dialect.state_query, "7[3].head"),
        env={"PATH": "/usr/bin:/bin", "PBS_EXEC": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.strip()) == word


def test_slurm_is_queried_for_the_newest_record_of_a_job_that_lost_a_node(tmp_path):
    for name, text in {
        "squeue": "echo 'Invalid job id specified' >&2; exit 1",
        "sacct": "printf 'RESIZING\\nFAILED\\n'",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o700)

    done = subprocess.run(
        successor_commands.query(schedulers.traits("slurm").dialect.state_query, "7"),
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "FAILED"


def test_a_job_that_completes_has_not_ended_but_is_ending():
    told = {
        word: (successor_commands.has_ended(word), successor_commands.is_ending(word))
        for word in ("", *successor_commands.STATES)
    }
    ending = {word for word, claims in told.items() if claims == (False, True)}
    alive = {word for word, claims in told.items() if claims == (False, False)}
    assert ending == {"COMPLETING"}
    assert (
        alive
        == {word for word, state in successor_commands.STATES.items() if state in (names.PENDING, names.RUNNING)}
        - ending
    )


def test_an_unknown_word_is_neither_an_end_nor_a_state():
    assert successor_commands.state_of("ODD") == successor_commands.state_of(None) == names.UNKNOWN
    assert not successor_commands.is_ending("ODD")
