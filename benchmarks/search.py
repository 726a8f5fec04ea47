"""Trials per second that eight processes draw from one journal, beside Optuna alone, and the time of one request."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import Figure, Timing, record

from serried.agent.trials.search import Study
from serried.schema.layout import RunDirectory

PROCESSES, TRIALS, ROUNDS = 8, 25, 3
"""Trials of each process."""
SPACE = {"lr": {"low": 1e-5, "high": 1e-1, "log": True}, "width": {"low": 16, "high": 64, "int": True}}


def settings(run: RunDirectory) -> dict[str, object]:
    return {
        "method": "bayes", "metric": "acc", "source": "", "goal": "maximize", "pruner": None, "space": SPACE,
        "journal": str(run.search), "pythons": [sys.executable],
    }  # fmt: skip


def draw_with_serried(run: RunDirectory, tasks: range) -> None:
    study = Study(settings(run))
    for task in tasks:
        _, parameters = study.ask(run.task(task), {})
        end(run, task, parameters["lr"])


def end(run: RunDirectory, task: int, value: float) -> None:
    """What the agent leaves of a trial."""
    log = run.task(task).attempt(1).metrics(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"t": 1, "step": 1, "acc": value}) + "\n")
    run.task(task).exit.write_text(json.dumps({"state": "COMPLETED", "cause": None}))


def draw_with_optuna(run: RunDirectory, tasks: range) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = str(run.path / "alone.log")
    study = optuna.create_study(
        study_name="alone",
        storage=optuna.storages.JournalStorage(JournalFileBackend(journal, lock_obj=JournalFileOpenLock(journal))),
        sampler=optuna.samplers.TPESampler(multivariate=True, constant_liar=True),
        direction="maximize",
        load_if_exists=True,
    )
    kinds = optuna.distributions
    space = {"lr": kinds.FloatDistribution(1e-5, 1e-1, log=True), "width": kinds.IntDistribution(16, 64)}
    for _ in tasks:
        trial = study.ask(space)
        study.tell(trial, trial.params["lr"])


CONTENDERS = {"serried": draw_with_serried, "optuna": draw_with_optuna}


@contextmanager
def a_run() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory() as folder:
        yield RunDirectory(Path(folder))


def per_second(contender: str) -> float:
    """Trials per second of all processes together, from the moment when all of them have imported Optuna."""
    with a_run() as run:
        processes = []
        for number in range(PROCESSES):
            argv = [sys.executable, __file__, contender, str(run.path), str(number * TRIALS)]
            processes.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in processes:
            process.stdout.readline()
        began = time.perf_counter()
        for process in processes:
            process.stdin.close()
        assert [process.wait() for process in processes] == [0] * PROCESSES
        taken = time.perf_counter() - began
        if contender == "serried":
            study = Study(settings(run))
            study.enter_ended_trials()
            trials = study._study.get_trials()  # noqa: SLF001
            assert [trial.state.name for trial in trials] == ["COMPLETE"] * PROCESSES * TRIALS
        return PROCESSES * TRIALS / taken


def of_one_process(contender: str, folder: str, first: str) -> None:
    import optuna  # noqa: F401 - imported before the time is taken

    print(flush=True)
    sys.stdin.read()
    CONTENDERS[contender](RunDirectory(Path(folder)), range(int(first), int(first) + TRIALS))


def of_a_request(ended: int) -> Timing:
    """A request of a process that starts for it, when so many trials have ended."""
    with a_run() as run:
        draw_with_serried(run, range(ended))
        program = (
            "import json, sys; from pathlib import Path; from serried.agent.trials.search import Study;"
            "from serried.schema.layout import RunDirectory; run = RunDirectory(Path(sys.argv[1]));"
            "Study(json.loads(sys.argv[2])).ask(run.task(int(sys.argv[3])), {})"
        )
        taken = []
        for task in range(ended, ended + 5):
            began = time.perf_counter()
            argv = [sys.executable, "-c", program, str(run.path), json.dumps(settings(run)), str(task)]
            subprocess.run(argv, check=True)
            taken.append(time.perf_counter() - began)
        return Timing.of(taken)


def main() -> None:
    speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, found in speeds.items():
            found.append(per_second(name))
    ours, alone = (sorted(found) for found in speeds.values())
    of_few, of_many = of_a_request(0), of_a_request(500)
    record(
        "Searches",
        [
            Figure(
                "trials that 8 processes draw and end, on one journal",
                f"{ours[1]:.1f} a second ({ours[0]:.1f} to {ours[-1]:.1f})",
                f"Optuna's `ask` and `tell` alone: {alone[1]:.1f} a second ({alone[0]:.1f} to {alone[-1]:.1f})",
                "≥ 10 a second: 10 trials of 1 s at once",
                ours[1] >= 10,
            ),
            Figure(
                "the parameters of one trial, from the start of a process to its end",
                str(of_few),
                "nothing to compare; most is the import of Optuna",
                "≤ 5 s",
                of_few.median <= 5000,
            ),
            Figure("the same after 500 trials", str(of_many), "nothing to compare", "≤ 5 s", of_many.median <= 5000),
        ],
    )


if __name__ == "__main__":
    sys.exit(of_one_process(*sys.argv[1:]) if len(sys.argv) > 1 else main())
