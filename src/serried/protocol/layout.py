"""Where things are in a run directory and in a record. Pure paths: nothing here touches a disk.

<root>/<project>/<experiment>/<run-id>/          the run directory: bulk, where compute nodes can write
  plan.json  job.sh                              written at submit
  agent.pyz  library.zip                         links to what all runs below the root share, in PROGRAMS
  setup.sh                                       the same, where the experiment has lines of `setup`
  commands.json                                  the same, for arrays with --commands only
  scheduler.log                                  what job.sh itself printed (scheduler-I.log for task I)
  claims/TOKEN                                   the job that owns submission TOKEN, or "withdrawn"; of an array in
                                                 parts one for each of its jobs
  shell.json                                     of `serried shell`: where it is, and how it ended
  link-commands.json                             how a job submits the next one (runs that go on in further jobs)
  links/TOKEN.json                               each further job: what submissions/1.json is to the first
  followed                                       another run was submitted to come after this one
  notices/EVENT, notices.log                     which notices were sent (runs with `notify`), and what came of it
  source/                                        the working tree: the unpacked snapshot, made by the first attempt, and
                                                 what ranks write by relative paths (outputs)
  fetched.jsonl                                  which files `serried fetch` has copied
  private/                                       the job's environment, where a scheduler would show it to everybody
  exit.json                                      how the run ended; absent while it goes on
  attempts/K/                                    K = 1, 2, …
    attempt.json                                 who claimed it: job id, token, host, when
    control.jsonl                                requests from outside; exists from the start
    events.jsonl                                 the head agent's
    node-N/events.jsonl                          node N's agent's
    node-N/rank-R.log                            stdout and stderr of rank R
    node-N/launcher.log                          what the launcher said that started the ranks (torchrun, srun …)
    node-N/metrics-R.jsonl                       what rank R has logged, a line for each step
    node-N/rehearsal-R.jsonl                     in a rehearsal: what rank R was, in digests
    node-N/brought.jsonl                         what was brought back from node N's own disk, and under which names
    node-N/fetch.jsonl                           how it went when `serried fetch` came for the rest of it
    exit.json                                    how this attempt ended; written last, by rename
  checkpoints/  results/
  tasks/I/{exit.json,attempts,checkpoints,results}   in array runs, instead of the four above; so
                                                 source/ and fetched.jsonl, if each task has a tree of its own

$XDG_STATE_HOME/serried/runs/<run-id>/           the record: small, lasts, on the submitting side
  plan.json  where  submissions/1.json  source.json  diff.patch  seen.json  exit.json
"""

from __future__ import annotations

import posixpath
from functools import cached_property
from pathlib import Path
from typing import Mapping, Optional

from serried.protocol.slug import slug

PROGRAMS = Path(".serried") / "agents"
"""Below a root: what runs bring along of Serried itself, named by its content."""
RESULTS, CHECKPOINTS = "results", "checkpoints"
"""What ranks make, and the names of the folders that it is in: of a run, and on a node's own disk."""


def run_directory(root: str, project: str, experiment: str, run: str) -> str:
    """Where a run's directory is under `root`, whatever project and experiment are called."""
    return posixpath.join(root, slug(project), slug(experiment), run)


def state_directory(environ: Mapping[str, str]) -> Path:
    """What Serried keeps for this user on the submitting side: `$XDG_STATE_HOME/serried`."""
    given = environ.get("XDG_STATE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".local" / "state") / "serried"


class AttemptDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.claim = path / "attempt.json"
        self.control = path / "control.jsonl"
        self.events = path / "events.jsonl"
        self.exit = path / "exit.json"

    @property
    def number(self) -> int:
        return int(self.path.name)

    def node(self, node: int) -> Path:
        return self.path / f"node-{node}"

    def node_events(self, node: int) -> Path:
        return self.node(node) / "events.jsonl"

    def log_of(self, rank: int, ranks: int) -> Path:
        """Where `rank` writes, one of `ranks` on each node, by its number alone.

        Launchers that count the nodes in an order of their own (torchrun) have it run on another node than that.
        """
        return self.rank_log(rank // max(ranks, 1), rank)

    def rank_log(self, node: int, rank: int) -> Path:
        return self.node(node) / f"rank-{rank}.log"

    def launcher_log(self, node: int) -> Path:
        return self.node(node) / "launcher.log"

    def metrics(self, node: int, rank: int) -> Path:
        return self.node(node) / f"metrics-{rank}.jsonl"

    def brought(self, node: int) -> Path:
        return self.node(node) / "brought.jsonl"

    def fetched(self, node: int) -> Path:
        return self.node(node) / "fetch.jsonl"


class TaskDirectory:
    """The directory of a single run or of one task of an array, with its attempts and its `exit.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exit = path / "exit.json"
        self.attempts = path / "attempts"
        self.checkpoints = path / CHECKPOINTS
        self.results = path / RESULTS
        self.source = path / "source"
        self.fetched = path / "fetched.jsonl"

    def attempt(self, number: int) -> AttemptDirectory:
        return AttemptDirectory(self.attempts / str(number))


class RunDirectory(TaskDirectory):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.plan = path / "plan.json"
        self.job_script = path / "job.sh"
        self.setup = path / "setup.sh"
        self.agent = path / "agent.pyz"
        self.library = path / "library.zip"
        self.private = path / "private"
        self.commands = path / "commands.json"
        self.claims = path / "claims"
        self.shell = path / "shell.json"
        self.link_commands = path / "link-commands.json"
        self.links = path / "links"
        self.followed = path / "followed"
        self.notices = path / "notices"
        self.notices_log = path / "notices.log"

    @cached_property
    def tasks(self) -> Path:
        """A folder for each task of an array. Earlier versions called it `elements`."""
        former = self.path / "elements"
        return former if former.is_dir() else self.path / "tasks"

    def claim(self, token: str) -> Path:
        return self.claims / token

    def link(self, token: str) -> Path:
        return self.links / f"{token}.json"

    def task(self, index: Optional[int]) -> TaskDirectory:
        """The task's directory; the run's own where `index` is None."""
        return self if index is None else TaskDirectory(self.tasks / str(index))

    def scheduler_log(self, index: Optional[int] = None) -> Path:
        return self.path / ("scheduler.log" if index is None else f"scheduler-{index}.log")


class RecordDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.json"
        self.where = path / "where"
        self.submissions = path / "submissions"
        self.source = path / "source.json"
        self.diff = path / "diff.patch"
        self.seen = path / "seen.json"
        self.exit = path / "exit.json"

    def submission(self, number: int) -> Path:
        return self.submissions / f"{number}.json"
