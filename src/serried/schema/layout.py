"""The paths of a run directory and of a record. Pure, but for the files at the end that say which job runs a trial.

<root>/<project>/<experiment>/<run-id>/          the run directory: large, on a file system of the compute nodes
  plan.json  job.sh                              written at submit
  agent.pyz  library.zip                         links to files in PROGRAMS, which all runs below the root share
  setup.sh                                       written at submit if the experiment has lines of `setup`
  script                                         the user's job script as of submit, for runs with `script`
  commands.json                                  written at submit for arrays with --commands
  calls.pickle                                   written at submit for Python functions: the functions and arguments
  trials.json                                    written at submit for sweeps: the parameters of each task
  scheduler.log                                  the output of job.sh itself (scheduler-I.log for task I)
  claims/TOKEN                                   the job that owns submission TOKEN, or "withdrawn"; one for each job
                                                 of an array in parts
  shell.json                                     of `serried shell`: its host, and its exit status
  link-commands.json                             the commands by which a job submits the next one
  links/TOKEN.json                               a further job, as submissions/1.json is the first one
  followed                                       exists if another run depends on this one
  notices/EVENT, notices.log                     the sent notifications (runs with `notify`), and their output
  source/                                        the working tree: the snapshot, which the first attempt unpacks, and
                                                 the files that ranks write by relative paths (outputs)
  fetched.jsonl                                  the files that `serried fetch` has copied
  private/                                       the job's environment, if the scheduler would show it to all users
  exit.json                                      how the run ended; written last
  attempts/K/                                    K = 1, 2, …
    attempt.json                                 its owner: job id, token, host, time
    control.jsonl                                requests from users; exists from the start
    events.jsonl                                 the head agent's
    node-N/events.jsonl                          node N's agent's
    node-N/rank-R.log                            stdout and stderr of rank R
    node-N/ranks.log                             with thousands of ranks: of all ranks of node N, except rank 0
    node-N/launcher.log                          the output of the ranks' launcher (torchrun, srun …)
    node-N/beside-I.log                          the output of command I of `beside`
    script.log                                   the output of the user's job script
    launches/ID.json                             a launch of a job script (agent/launchers/interception.py)
    launches/failures/CALL.json                  a launch or a Python program of the script that failed
    node-N/launch-ID/rank-R.log                  rank R of launch ID; that of launch 1 is node-N/rank-R.log
    node-N/launch-ID-in-P/rank-R.log             if rank P of the launch around it started launch ID for itself alone
    node-N/metrics-R.jsonl                       the metrics of rank R, a line for each step
    node-N/samples.jsonl                         what node N's sampler measured (schema/live.py)
    node-N/stacks-ID.json                        the stacks of node N's ranks (schema/stacks.py)
    live.json                                    what all nodes do now (schema/live.py); the head agent's
    node-N/rehearsal-R.jsonl                     with `serried check-resume`: digests of rank R's state
    node-N/brought.jsonl                         the copies of files from node N's disk, with their names
    node-N/fetch.jsonl                           the journal of `serried fetch` for the rest of these files
    exit.json                                    how this attempt ended; written last, by rename
  checkpoints/  results/
  profiles/rank-R.json.gz                        of `serried profile`: the trace of rank R, beside it the summary
                                                 rank-R.summary.json, and rank-R.memory.pickle with `--memory`
  tasks/I/{exit.json,attempts,checkpoints,results}   in array runs, in place of the four above; also
                                                 source/ and fetched.jsonl, if each task has its own tree
  tasks/I/trial.json                             the parameters that the task's trial got when it started
  tasks/I/worker                                 the task whose job runs this one, or "withdrawn" (with `workers`)
  search/journal.log                             Optuna's journal of a sweep (agent/trials/search.py)

$XDG_STATE_HOME/serried/runs/<run-id>/           the record: small and permanent, on the submitting side
  plan.json  where  submissions/1.json  source.json  diff.patch  seen.json  exit.json
  usage.json                                     the samples in a few numbers, for reports once they are purged
$XDG_STATE_HOME/serried/benches/ID.json          a bench: its points, and the run of each; ID/figures.json keeps the
                                                 figures of runs that have ended
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Iterator, Mapping, Optional, Union

from serried.base.files import claim, make_directory, numbers, read_bytes
from serried.schema import names
from serried.schema.names import SCRIPT_RANK

PROGRAMS = Path(".serried") / "agents"
"""Below a root: the programs of Serried that runs share, named by a hash of their content."""
RESULTS, CHECKPOINTS = "results", "checkpoints"
"""The output of ranks, and the folders for it: in the run directory, and on a node's own disk."""
SHARED_LOG = "ranks.log"
LONGEST_NAME = 40
_PLAIN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,%d}" % (LONGEST_NAME - 1)
_DIGEST = 6


def slug(text: str) -> str:
    """`text` if it is plain, else its plain characters and a short hash of the whole.

    Safe as a folder's name, in a job's name and on a command line: never empty, at most 40 characters, only
    `[A-Za-z0-9._-]`, and never with `-` or `.` in front. Different names that are not plain have different slugs.
    """
    if re.fullmatch(_PLAIN, text):
        return text
    import hashlib  # takes milliseconds, and most names need none

    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    kept = plain(text, LONGEST_NAME - _DIGEST - 1)
    return f"{kept}-{digest}" if kept else digest


def plain(text: str, longest: int) -> str:
    """The plain characters of `text`, with a `-` for each run of others: at most `longest`, possibly none.

    Different names may become the same. Never begins or ends with `-` or `.`.
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:longest].rstrip("-.")


SENT = ".sent"
"""Beside the tree of a project that another machine sent: its manifest, the diff, and the user's settings there."""
SENT_SETTINGS = "SERRIED_SENT_SETTINGS"
"""The folder of these settings, `//`, and the path of their folder on the other machine, which messages show."""
_SENT_TREE = r"(/(?:.*/)?serried/projects/[0-9a-f]{16})/[0-9a-f]{32}/[^/]+"


def sent_tree(path: Union[Path, str]) -> Optional[Path]:
    """The tree of a project that another machine sent, if `path` is in such a tree."""
    match = re.match(_SENT_TREE, str(path))
    return Path(match[0]) if match else None


def in_tree_of(here: Path, path: Path) -> Path:
    """`path`, if it is in an earlier tree of the project that `here` is in, in the tree of `here`; else unchanged."""
    old, new = sent_tree(path), sent_tree(here)
    return new / path.relative_to(old) if old and new and project_folder(old) == project_folder(new) else path


def project_folder(path: Path) -> Path:
    """For a path in a tree that another machine sent: the folder of all trees of that project. Otherwise `path`."""
    match = re.match(_SENT_TREE, str(path))
    return Path(match[1]) if match else path


def sent_key(origin: str) -> str:
    """The name of that folder: `origin` is the other machine, a colon, and the project's folder there."""
    import hashlib  # slow to load

    return hashlib.sha256(origin.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def run_directory(root: str, project: str, experiment: str, run: str) -> str:
    """The path of a run directory below `root`, for any names of project and experiment."""
    return posixpath.join(root, slug(project), slug(experiment), run)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Serried's folder for this user on the submitting side: `$XDG_STATE_HOME/serried`."""
    given = environ.get("XDG_STATE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".local" / "state") / "serried"


class _Below:
    """A path below a directory. It is made when it is used: of a thousand runs in a list, few are."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, directory: "_Directory", owner: object = None) -> Path:
        return directory.path.joinpath(*self._names)


class _Directory:
    def __init__(self, path: Path) -> None:
        self.path = path


class AttemptDirectory(_Directory):
    claim = _Below("attempt.json")
    control = _Below("control.jsonl")
    events = _Below("events.jsonl")
    exit = _Below("exit.json")
    live = _Below("live.json")
    notebook = _Below("notebook.json")
    """The port and the token of `serried notebook`, readable only by the owner."""
    reserve = _Below("reserve")
    """Space for the last files of the attempt: deleted before them if the disk is full, and after them otherwise."""

    @property
    def number(self) -> int:
        return int(self.path.name)

    def node(self, node: int) -> Path:
        return self.path / f"node-{node}"

    def node_events(self, node: int) -> Path:
        return self.node(node) / "events.jsonl"

    def log_of(self, rank: int, ranks: int, *, is_shared: bool) -> Path:
        """The log of `rank` by its number alone, with `ranks` on each node.

        A launcher with its own order of nodes, such as torchrun, may run the rank on a different node.
        """
        if rank == SCRIPT_RANK:
            return self.script_log
        node = rank // max(ranks, 1)
        return self.shared_log(node) if is_shared and rank else self.rank_log(node, rank)

    def shared_log(self, node: int) -> Path:
        return self.node(node) / SHARED_LOG

    @property
    def script_log(self) -> Path:
        return self.path / "script.log"

    def rank_log(self, node: int, rank: int) -> Path:
        return self.node(node) / f"rank-{rank}.log"

    @property
    def launches(self) -> Path:
        return self.path / "launches"

    def launch_log(self, node: int, launch: str, rank: int, within: Optional[int] = None) -> Path:
        """The log of `rank` of a launch in a job script.

        `within` is the rank that started a launch for itself alone. If several ranks started a common launch, as
        torchrun on each node of an srun does, it is None.
        """
        if launch == "1":
            return self.rank_log(node, rank)
        folder = f"launch-{launch}" if within is None else f"launch-{launch}-in-{within}"
        return self.node(node) / folder / f"rank-{rank}.log"

    def launcher_log(self, node: int) -> Path:
        return self.node(node) / "launcher.log"

    def side_log(self, node: int, index: int) -> Path:
        return self.node(node) / f"beside-{index}.log"

    def metrics(self, node: int, rank: int) -> Path:
        return self.node(node) / f"metrics-{rank}.jsonl"

    def samples(self, node: int) -> Path:
        return self.node(node) / "samples.jsonl"

    def stacks(self, node: int, request: str) -> Path:
        """The answer of a node to a request of `serried stacks`. A request has an id of plain characters."""
        return self.node(node) / f"stacks-{slug(request)}.json"

    def copies(self, node: int) -> Path:
        return self.node(node) / "brought.jsonl"

    def fetched(self, node: int) -> Path:
        return self.node(node) / "fetch.jsonl"


class TaskDirectory(_Directory):
    """The directory of a single run or of one task of an array, with its attempts and its `exit.json`."""

    exit = _Below("exit.json")
    attempts = _Below("attempts")
    checkpoints = _Below(CHECKPOINTS)
    results = _Below(RESULTS)
    source = _Below("source")
    fetched = _Below("fetched.jsonl")
    trial = _Below("trial.json")
    worker = _Below("worker")
    profiles = _Below("profiles")

    def profile_trace(self, rank: int) -> Path:
        return self.profiles / f"rank-{rank}.json.gz"

    def profile_summary(self, rank: int) -> Path:
        return self.profiles / f"rank-{rank}.summary.json"

    def profile_memory(self, rank: int) -> Path:
        return self.profiles / f"rank-{rank}.memory.pickle"

    def attempt(self, number: int) -> AttemptDirectory:
        return AttemptDirectory(self.attempts / str(number))


class RunDirectory(TaskDirectory):
    plan = _Below("plan.json")
    job_script = _Below("job.sh")
    setup = _Below("setup.sh")
    script = _Below("script")
    agent = _Below("agent.pyz")
    library = _Below("library.zip")
    private = _Below("private")
    commands = _Below("commands.json")
    trials = _Below("trials.json")
    calls = _Below("calls.pickle")
    search = _Below("search", "journal.log")
    claims = _Below("claims")
    shell = _Below("shell.json")
    link_commands = _Below("link-commands.json")
    links = _Below("links")
    followed = _Below("followed")
    notices = _Below("notices")
    notices_log = _Below("notices.log")

    tasks = _Below("tasks")
    """A folder for each task of an array."""

    def claim(self, token: str) -> Path:
        return self.claims / token

    def link(self, token: str) -> Path:
        return self.links / f"{token}.json"

    def task(self, index: Optional[int]) -> TaskDirectory:
        """The task's directory; the run directory itself if `index` is None."""
        return self if index is None else TaskDirectory(self.tasks / str(index))

    def scheduler_log(self, index: Optional[int] = None) -> Path:
        return self.path / ("scheduler.log" if index is None else f"scheduler-{index}.log")


class RecordDirectory(_Directory):
    plan = _Below("plan.json")
    where = _Below("where")
    submissions = _Below("submissions")
    source = _Below("source.json")
    diff = _Below("diff.patch")
    seen = _Below("seen.json")
    exit = _Below("exit.json")
    usage = _Below("usage.json")

    def submission(self, number: int) -> Path:
        return self.submissions / f"{number}.json"


def worker_of(run: RunDirectory, trial: int) -> int:
    """The job that runs the trial. In a sweep with `--workers`, a job may take trials of other tasks.

    A job is identified by the array task that it was submitted for. The first job to create the trial's file owns the
    trial permanently.
    """
    return worker_in(owner_of(run, trial), trial)


def worker_in(owner: str, trial: int) -> int:
    """The same, by the content of the trial's file."""
    return int(owner) if owner.isdecimal() else trial


def trials_of(run: RunDirectory, worker: int) -> Iterator[int]:
    return (trial for trial in numbers(run.tasks) if owner_of(run, trial) == str(worker))


def unended_trial(run: RunDirectory, worker: int) -> Optional[int]:
    return next((trial for trial in trials_of(run, worker) if not run.task(trial).exit.exists()), None)


def owner_of(run: RunDirectory, trial: int) -> str:
    """The index of the job that has drawn the trial, `names.WITHDRAWN`, or nothing if any job may still draw it."""
    try:
        return read_bytes(run.task(trial).worker).decode("ascii")
    except (OSError, ValueError):
        return ""


def withdraw(run: RunDirectory, trial: int, mode: int) -> bool:
    """Take the trial, so that no job draws it. False if a job has drawn it. Raises OSError."""
    run.path.stat()  # a run directory that was deleted stays so
    place = run.task(trial)
    make_directory(place.path, mode)
    return claim(place.worker, names.WITHDRAWN) == names.WITHDRAWN
