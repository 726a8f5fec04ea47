"""Experiment trackers: facts about wandb, TensorBoard and MLflow that `submit`, agents and ranks share.

An agent gives its ranks the settings in one variable. For programs that call wandb themselves it also sets the
variables that wandb reads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from serried.base import NamedTuple
from serried.schema import names

TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"
SINKS = (TENSORBOARD, WANDB, MLFLOW)
"""In addition to the lines of `run.log`, which are always written."""

AUTO, ONLINE, OFFLINE, OFF = names.TRACK_AUTO, names.TRACK_ONLINE, names.TRACK_OFFLINE, names.TRACK_OFF
MODES = (AUTO, ONLINE, OFFLINE, OFF)

FOLDER = "tracking"
"""In a run's results: a folder for each sink."""

KEY = "WANDB_API_KEY"
CREDENTIALS = "wandb_credentials.txt"
"""In the home: the key alone, as ammunk/hpc keeps it."""
ADDRESS = "WANDB_BASE_URL"
PUBLIC = "https://api.wandb.ai"
SERVER = "MLFLOW_TRACKING_URI"

REACH_SECONDS = 1.0


class Tracking(NamedTuple):
    """The settings of a run's trackers, as its ranks get them."""

    sinks: Tuple[str, ...] = ()
    project: str = ""
    group: str = ""
    """Empty for none."""
    mode: str = AUTO
    every_process: bool = False
    """Each rank is a run of its own, and all are in one group. Otherwise only rank 0 is a run."""
    name: str = ""
    """The name for people."""
    id: str = ""
    """The same for every attempt of a run, or of a task; empty outside of a run of Serried."""
    folder: str = ""
    """The folder of the sinks' own files, absolute; empty outside of a run of Serried."""

    def encode(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> Tracking:
        """Raises ValueError."""
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(text)  # noqa: TRY004 - as for any other text
        known = {name: item for name, item in value.items() if name in cls._fields}
        return cls(**{**known, "sinks": tuple(known.get("sinks", ()))})

    def of_rank(self, rank: int) -> Tracking:
        """With `every_process`: the id and the name of this rank, and the group of all."""
        if not self.every_process:
            return self
        suffix = f"-r{rank}"
        return self._replace(
            id=self.id and self.id + suffix, name=self.name and self.name + suffix, group=self.group or self.id
        )

    def has_run(self, rank: int) -> bool:
        return bool(self.sinks) and self.mode != OFF and (rank == 0 or self.every_process)


class AccountKey(NamedTuple):
    """The key of a wandb account. Its value is in no message."""

    value: str
    source: str
    """The variable or the path of the file that holds it."""
    is_exposed: bool = False
    """Other users may read the file."""


def find_key(environ: Mapping[str, str], project: Optional[Path] = None) -> Optional[AccountKey]:
    """The key from the environment, the project's `.env`, `~/.netrc` or `~/wandb_credentials.txt`, in this order."""
    if environ.get(KEY):
        return AccountKey(environ[KEY], KEY)
    from urllib.parse import urlsplit  # agents without trackers need not load it

    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises without a user
    host = urlsplit(address(environ)).hostname or ""
    for path, values in (
        (project / ".env" if project else None, _from_env_file),
        (Path(environ.get("NETRC") or home / ".netrc"), lambda text: _from_netrc(text, host)),
        (home / CREDENTIALS, lambda text: text.split()[:1]),
    ):
        try:
            text = path.read_text(encoding="utf-8", errors="replace") if path else ""
        except OSError:
            continue
        if path and (value := next(iter(values(text)), "")):
            return AccountKey(value, str(path), bool(path.stat().st_mode & 0o077))
    return None


def _from_env_file(text: str) -> List[str]:
    found = []
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name.split() in ([KEY], ["export", KEY]):
            found.append(value.strip().strip("'\""))
    return found


def _from_netrc(text: str, host: str) -> List[str]:
    """The password of `host`. Python's own reader refuses a whole file for a line that it does not know."""
    words = text.split()
    starts = [at for at, word in enumerate(words) if word in ("machine", "default")]
    for number, start in enumerate(starts):
        entry = words[start : starts[number + 1] if number + 1 < len(starts) else None]
        if entry[:2] == ["machine", host] and "password" in entry[:-1]:
            return [entry[entry.index("password") + 1]]
    return []


def address(environ: Mapping[str, str]) -> str:
    return environ.get(ADDRESS) or PUBLIC


def sweep_page(sweep: str, environ: Mapping[str, str]) -> str:
    """The page of a sweep at W&B's service, by its `ENTITY/PROJECT/ID`."""
    from urllib.parse import quote

    site = "https://wandb.ai" if address(environ) == PUBLIC else address(environ).rstrip("/")
    entity_project, _, name = sweep.rpartition("/")
    return f"{site}/{quote(entity_project)}/sweeps/{name}"


def is_reachable(url: str, environ: Mapping[str, str], seconds: float = REACH_SECONDS) -> bool:
    """Whether this machine can connect to the host of `url`, or to the proxy for that host, within `seconds`."""
    from urllib.parse import urlsplit

    parts = urlsplit(_proxy(url, environ) or url)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:  # not a number
        return False
    host = parts.hostname
    if not host:
        return False
    answer: List[bool] = []

    import socket
    import threading

    def connect() -> None:
        try:
            socket.create_connection((host, port), seconds).close()
        except (OSError, UnicodeError):
            return
        answer.append(True)

    # A resolver without a server blocks for half a minute, and takes no time limit. So a thread waits for it.
    thread = threading.Thread(target=connect, name="serried-reach", daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answer)


def _proxy(url: str, environ: Mapping[str, str]) -> str:
    """The proxy by the usual variables; empty for none."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    variable = f"{parts.scheme}_proxy"
    proxy = environ.get(variable) or environ.get(variable.upper()) or ""
    host = parts.hostname or ""
    for entry in (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(","):
        name = entry.strip().lstrip(".").partition(":")[0]
        if name and (name in ("*", host) or host.endswith(f".{name}")):
            return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def wandb_mode(mode: str, environ: Mapping[str, str]) -> str:
    """`mode` as wandb writes it. With `auto`: online with a key and a server that answers within a second."""
    if mode == OFF:
        return "disabled"
    if mode != AUTO:
        return mode
    return ONLINE if find_key(environ) and is_reachable(address(environ), environ) else OFFLINE


def wandb_variables(tracking: Tracking, rank: Optional[int], mode: str) -> Dict[str, str]:
    """The variables for a rank that is a run and calls wandb itself. `mode` is wandb's.

    `rank`: None for a job script, all of whose processes inherit these variables: then no variable names a run.
    """
    own = tracking.of_rank(rank or 0)
    variables = {
        "WANDB_MODE": mode,
        "WANDB_DIR": own.folder,
        "WANDB_PROJECT": own.project,
        "WANDB_RUN_GROUP": own.group,
    }
    if rank is not None:
        variables.update(WANDB_RUN_ID=own.id, WANDB_NAME=own.name, WANDB_RESUME="allow")
    return {name: value for name, value in variables.items() if value}
