"""`ROLE TOKEN --name value …`: all that job.sh says. argparse would cost each start more than most of its imports."""

from __future__ import annotations

from typing import List, Optional

FLAGS = ("job", "task", "hosts", "node-variable", "environment", "end", "age", "final", "problem")


class Options:
    def __init__(self, token: str) -> None:
        self.token = token
        self.job = ""
        self.task: Optional[int] = None
        self.hosts = ""
        self.node_variable = ""
        self.environment = ""
        """The file by which nodes get the environment, where the launcher does not pass it on."""
        self.end = 0.0
        """When the scheduler ends the job, seconds since the epoch; 0 where it does not say."""
        self.age = 0.0
        """How long ago the job began, in seconds, where the scheduler does not say when it ends."""
        self.final = ""
        """What job.sh knows about the end: `cancel`; `limit` or `ended` where it could not be run again."""
        self.problem = ""
        """What keeps the ranks from starting."""


def parse(arguments: List[str]) -> Options:
    """Raises ValueError on anything that job.sh would not say. An empty value leaves the default."""
    token, *rest = arguments
    options = Options(token)
    if len(rest) % 2:
        raise ValueError(f"`{rest[-1]}` has no value")
    for flag, value in zip(rest[::2], rest[1::2]):  # noqa: B905 - `strict` is 3.10's, and the length is even
        if flag[2:] not in FLAGS:
            raise ValueError(f"no option `{flag}`")
        name = flag[2:].replace("-", "_")
        if value:
            convert = {"task": int, "end": float, "age": float}.get(name, str)
            setattr(options, name, convert(value))
    return options
