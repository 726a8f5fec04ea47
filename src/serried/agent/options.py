"""The arguments from job.sh, `ROLE TOKEN --name value …`. Importing argparse would slow down each start."""

from __future__ import annotations

from typing import List, Optional

FLAGS = ("job", "task", "hosts", "node-variable", "environment", "end", "age", "final", "problem", "ended", "longest")


class Options:
    def __init__(self, token: str) -> None:
        self.token = token
        self.job = ""
        self.task: Optional[int] = None
        self.hosts = ""
        self.node_variable = ""
        self.environment = ""
        """The file that passes the environment to nodes, for launchers that do not."""
        self.end = 0.0
        """When the scheduler ends the job, in seconds since the epoch; 0 if the scheduler does not tell."""
        self.age = 0.0
        """How long ago the job began, in seconds, if the scheduler does not tell when it ends the job."""
        self.final = ""
        """The end as job.sh knows it: `cancel`; `requeue` if the job will run again; `limit` or `ended` if not."""
        self.problem = ""
        """The problem that keeps the ranks from starting."""
        self.ended: Optional[int] = None
        """The trial that the job has run before it draws another."""
        self.longest = 0.0
        """Seconds that the longest trial of the job has taken."""


def parse(arguments: List[str]) -> Options:
    """An empty value leaves the default. Raises ValueError on arguments that job.sh does not use."""
    token, *rest = arguments
    options = Options(token)
    if len(rest) % 2:
        raise ValueError(f"`{rest[-1]}` has no value")
    for flag, value in zip(rest[::2], rest[1::2]):
        if flag[2:] not in FLAGS:
            raise ValueError(f"no option `{flag}`")
        name = flag[2:].replace("-", "_")
        if value:
            convert = {"task": int, "end": float, "age": float, "ended": int, "longest": float}.get(name, str)
            setattr(options, name, convert(value))
    return options
