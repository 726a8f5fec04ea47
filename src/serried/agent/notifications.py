"""Notify people when a run begins, ends, stalls or needs attention, by their own command and by a webhook.

Best effort, at most once for each event. A separate process sends the notifications, in bounded time. No run fails
because of it, and only a run that has ended waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.base import files
from serried.base.text import iso
from serried.schema import SCHEMA, names
from serried.schema.endings import End
from serried.schema.plan import Notify
from serried.schema.reasons import Reason

WEBHOOK_SECONDS = 10
COMMAND_SECONDS = 20
OUTPUTS_SECONDS = 3
"""The time limit for listing outputs. A notification without them is better than none."""
LINGER_SECONDS = 15.0
"""How long the end of a job waits for its notification: the scheduler kills processes that the job leaves."""
STEP_SECONDS = 0.05

_tried: Set[str] = set()
"""Events that this process has sent, or knows to be sent."""


def notify(attempt: Attempt, event: str, kind: str = "", /, **facts: Any) -> Optional[int]:
    """Send `event`, once for each `kind`, if the plan requests it. Never raises.

    Returns the pid of the sending process.
    """
    wanted = attempt.plan.notify
    name = f"{event}-{kind}" if kind else event
    if wanted is None or event not in wanted.on or name in _tried:
        return None
    _tried.add(name)
    try:
        files.make_directory(attempt.run.notices, attempt.directory_mode)
        mine = f"{attempt.process_tag} {os.uname().nodename} {os.getpid()}"
        if files.claim(attempt.run.notices / name, mine) != mine:
            return None
        return _start(attempt, json.dumps(_document(attempt, event, facts)).encode())
    except (OSError, ValueError) as error:
        system.log(f"cannot send the notification of `{event}`: {error}")
        return None


def notify_end(attempt: Attempt, end: End, *, lingers: bool) -> None:
    """Send the notification of an end: an array fails with its first failed task, and finishes with its last task.

    There is none after `serried stop`, whose user knows, and none if the scheduler may restart the cancelled job.
    """
    may_begin_again = (
        end.cause == Reason.CANCEL and attempt.plan.limit.restarts and attempt.plan.limit.continue_by == names.REQUEUE
    )
    if end.cause == Reason.USER or may_begin_again:
        return
    has_completed = end.state == names.COMPLETED
    facts = {name: getattr(end, name) for name in ("state", "exit_code", "cause", "message", "attempt", "seconds")}
    if has_completed and attempt.task is not None:
        wanted = attempt.plan.notify
        if wanted is None or names.EVENT_FINISH not in wanted.on:
            return
        ends = (files.read_json(attempt.run.task(index).exit) or {} for index in attempt.tasks)
        if any(end.get("state") != names.COMPLETED for end in ends):
            return
        facts.update(cause=None, message=f"all {len(attempt.tasks)} tasks have completed", attempt=None, seconds=None)
        attempt = Attempt(attempt.run, attempt.plan, None, 0)
    event = names.EVENT_FINISH if has_completed else names.EVENT_FAIL
    pid = notify(attempt, event, **facts)
    deadline = time.monotonic() + LINGER_SECONDS
    with contextlib.suppress(ChildProcessError):
        while pid and lingers and time.monotonic() < deadline and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(STEP_SECONDS)


def _document(attempt: Attempt, event: str, facts: Dict[str, Any]) -> Dict[str, Any]:
    plan = attempt.plan
    words = {
        names.EVENT_START: "has started",
        names.EVENT_STALL: "is silent: no rank has written anything for a while",
        names.EVENT_ANOMALY: f"needs attention: {facts.get('message')}",
    }
    news = words.get(event) or f"{facts.get('state')}: {facts.get('message')}"
    text = f"{plan.name} ({attempt.name}) on {plan.site.name} {news}"
    return {
        "schema": SCHEMA,
        "event": event,
        "text": text,
        "content": text,
        "run": plan.run,
        "task": attempt.task,
        "name": plan.name,
        "project": plan.project,
        "experiment": plan.experiment,
        "cluster": plan.site.name,
        "attempt": attempt.number or None,
        "directory": str(attempt.run.path),
        "time": iso(time.time()),
        **facts,
    }


def _start(attempt: Attempt, document: bytes) -> int:
    reader, writer = os.pipe()
    log = os.open(attempt.run.notices_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, attempt.file_mode)
    directory = system.decode(os.fsencode(attempt.run.path))
    words = system.agent_command("notify", "-")
    child = system.spawn(words, system.environment(), (reader, log, log), directory=directory, own_group=True)
    os.close(reader)
    os.close(log)
    os.write(writer, document)
    os.close(writer)
    return child.pid


class _TooLongError(Exception):
    pass


def main(arguments: List[str]) -> int:  # noqa: ARG001 - every role has some
    """`notify`: send the event on stdin in each way that the plan names, and log problems."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _give_up)
    attempt = Attempt.load(run_directory(), None, 0)
    set_umask(attempt)
    document = _with_outputs(attempt, json.loads(sys.stdin.buffer.read()))
    wanted = attempt.plan.notify or Notify()
    if wanted.webhook:
        _note(document, f"webhook ${wanted.webhook}", _post(os.environ.get(wanted.webhook, ""), document))
    if wanted.command:
        _note(document, "command", _run(attempt, list(wanted.command), document))
    return 0


def _with_outputs(attempt: Attempt, document: Dict[str, Any]) -> Dict[str, Any]:
    """Add the run's outputs to the notification of an end, if they can be listed in time."""
    if document["event"] not in (names.EVENT_FINISH, names.EVENT_FAIL):
        return document
    from serried.schema import outputs

    signal.alarm(OUTPUTS_SECONDS)
    try:
        found = (attempt.run, attempt.plan, document["task"])
        places: List[outputs.Place] = [*outputs.trees(*found), *outputs.final_models(*found)]
        description = outputs.describe(places, outputs.LOOKED)
    except (_TooLongError, OSError, ValueError):
        return document
    finally:
        signal.alarm(0)
    if not description.files:
        return document
    # File names may contain newlines and undecodable bytes.
    spelled = (
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in description.text
    )
    text = f"{document['text']}\noutputs: {''.join(spelled)}"
    return {**document, "text": text, "content": text, "outputs": description.to_json()}


def _give_up(*_: object) -> None:
    raise _TooLongError


def _note(document: Dict[str, Any], what: str, problem: Optional[str]) -> None:
    print(f"{document['time']} {document['event']}: {what}: {problem or 'sent'}", flush=True)


def _post(url: str, document: Dict[str, Any]) -> Optional[str]:
    """Post the document. Returns the problem, if any, without the address, which is a secret."""
    from urllib import request

    if not url.startswith(("https://", "http://")):
        return "its value is not an http address"
    headers = {"Content-Type": "application/json", "User-Agent": "serried"}
    signal.alarm(WEBHOOK_SECONDS)
    try:
        post = request.Request(url, json.dumps(document).encode(), headers)  # noqa: S310 - checked above
        request.urlopen(post, timeout=WEBHOOK_SECONDS).close()  # noqa: S310
    except Exception as error:  # noqa: BLE001 - urllib raises many kinds for an odd address
        return _words(error)
    finally:
        signal.alarm(0)
    return None


def _words(error: Exception) -> str:
    """Describe the error without urllib's own message, which may contain the address."""
    import socket
    from urllib.error import HTTPError, URLError

    if isinstance(error, HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, (_TooLongError, socket.timeout)):
        return f"no answer within {WEBHOOK_SECONDS} s"
    return getattr(error, "strerror", None) or type(error).__name__


def _run(attempt: Attempt, command: List[str], document: Dict[str, Any]) -> Optional[str]:
    import subprocess

    facts = {
        f"SERRIED_{name.upper()}": document.get(name) for name in ("event", "name", "state", "message", "exit_code")
    }
    variables = {name: "" if value is None else str(value) for name, value in facts.items()}
    workdir = attempt.workdir if attempt.workdir.is_dir() else Path(attempt.run.path)
    try:
        process = subprocess.Popen(
            command,
            cwd=workdir,
            env={**os.environ, **variables, names.RUN_ID: str(document["run"])},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"cannot be started: {getattr(error, 'strerror', None) or error}"
    try:
        signal.alarm(COMMAND_SECONDS)
        process.communicate(json.dumps(document).encode())
        status = process.returncode
    except _TooLongError:
        os.killpg(process.pid, signal.SIGKILL)
        return f"was killed, as it took longer than {COMMAND_SECONDS} s"
    finally:
        signal.alarm(0)
    return f"ended with status {status}" if status else None
