"""Commands for another cluster: typed here, run on its login node by Serried's far part, shown here."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from serried import config
from serried.base import shell
from serried.base.errors import Elsewhere, NotConnected, SerriedError, UsageError
from serried.base.text import spell
from serried.records import index
from serried.records.index import ClusterRuns
from serried.remote import link
from serried.remote.client import ConnectionLost, RemoteRequest, RemoteSession
from serried.schema import names
from serried.views import console

_OF_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR")
_GLANCE_SECONDS = 2.0
"""How long a list waits for a cluster."""
SHOWN_BYTES, MUCH_BYTES = 1_000_000, 1 << 30
"""Sizes above which sending shows progress, and needs a confirmation."""
LARGE = "copy large data to the cluster once (`scp`), and name its path there in `data.stage`"
_INSTEAD = {
    "watch": ("watch --web", "serried watch RUN, on the terminal"),
    "track": ("track tensorboard", "serried fetch RUN --follow --to DIR, and `tensorboard --logdir DIR` here"),
}
"""Commands that need libraries over there, and what to type instead."""
_REMEMBERED = 50
"""The most runs that are known here without a connection."""


def relay(
    error: Elsewhere,
    words: Sequence[str],
    across: str,
    script: bytes | None = None,
    on_output: Callable[[bytes], object] | None = None,
) -> int:
    """Run the command `words` on the login node of the cluster, show its output, and return its exit status.

    `across` is the command's kind. One that `reads` ends with the connection. Others run to their end: one that
    `changes` something; one that `repeats` a run, with the project's secrets; and one that `submits`, to the cluster of
    its settings, never to the cluster of a run in its options. One that `stays` is refused.
    """
    if across == "submits" and not error.names_cluster:
        hint = f"`--cluster {error.cluster}`, without `--dry-run`, submits where that run is"
        raise UsageError(error.message, hint=hint)
    if across == "stays" or (words[0] == "watch" and "--web" in words):
        what, instead = _INSTEAD.get(words[0], (words[0], None))
        raise UsageError(f"`serried {what}` works only on a login node of `{error.cluster}`", hint=instead)
    if across == "repeats":
        from serried.submission.request import secrets_in  # a list of runs does not need it

        error.variables = secrets_in(Path.cwd(), error.cluster, os.environ)
    terminals = [stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    with _session(error.cluster, across) as session:
        directory = None
        if error.names_cluster:
            from serried.remote import project  # for commands that read settings

            here = Path.cwd() if error.needs_project else None
            is_agreed = not {"-y", "--yes"}.isdisjoint(itertools.takewhile(lambda word: word != "--", words))
            with _sending(is_agreed=is_agreed) as observe:
                directory = project.send(session, project.survey(here, os.environ, error.data), observe)
        request = RemoteRequest(
            argv=tuple(words),
            env=environment(error),
            changes=across != "reads",
            terminals=(terminals[0] and script is None, terminals[1], terminals[2]),
            directory=directory,
        )
        if words[0] == "shell" and all(terminals[:2]):
            kept = session.ask("terminal", {"request": request._asdict()})
            session.close()
            argv = link.on_terminal(error.cluster, session.host, shlex.join(kept["words"]))
            return shell.foreground(argv, env=os.environ)
        given = sys.stdin.buffer if script is None and terminals[0] else io.BytesIO(script or b"")
        sys.stdout.flush()
        status = session.call(
            request, stdin=given, on_output=on_output or _writer(1), on_errors=_writer(2), on_wait=_say
        )
        if request.changes:
            renew(session)
    return status


def renew(session: RemoteSession) -> None:
    """Update the known runs after a command. If the cluster does not answer now, the next list asks it again."""
    with contextlib.suppress(SerriedError):
        _ask(session, _REMEMBERED, _GLANCE_SECONDS)


@contextlib.contextmanager
def _session(cluster: str, across: str) -> Iterator[RemoteSession]:
    """A session. If NotConnected is raised within it, no request that changes something was sent; the error says so."""
    try:
        with session_with(cluster) as session:
            yield session
    except NotConnected as lost:
        if across != "reads" and lost.code != "none":
            lost.message += "; nothing was started there"
        raise


@contextlib.contextmanager
def _sending(*, is_agreed: bool) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of sending. Raises UsageError if there is much to send and the user does not confirm."""
    with contextlib.ExitStack() as stack:
        lines: list[console.MovingLine] = []

        def observe(sent: int, size: int) -> None:
            nonlocal is_agreed
            if size > MUCH_BYTES and not is_agreed:
                if not console.can_ask():
                    hint = f"pass `-y`; {LARGE}"
                    raise UsageError(f"refusing to send {spell(size)} without confirmation", hint=hint)
                console.warning(f"{spell(size)} would be sent to the cluster", hint=LARGE)
                if not console.confirm("send it?"):
                    raise UsageError("nothing was sent", hint=LARGE)
                is_agreed = True
            if size > SHOWN_BYTES:
                lines[:] = lines or [stack.enter_context(console.status_line(""))]
                lines[0].update(f"sending: {spell(sent)} of {spell(size)}")

        yield observe


def through_tunnel(
    error: Elsewhere, words: Sequence[str], carry: Callable[[int, int], Mapping[str, Any] | None]
) -> Mapping[str, Any]:
    """Run `words` on the login node. `carry` gets descriptors to read its stdout and to write its stdin.

    Returns the result of `carry`. Raises NotConnected if the connection breaks, SystemExit if the command fails.
    """
    (given, gives), (takes, taken) = os.pipe(), os.pipe()
    ended: list[int | SerriedError] = []
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    request = RemoteRequest(tuple(words), environment(error), changes=False, terminals=(False, False, is_terminal))
    with session_with(error.cluster) as session, os.fdopen(given, "rb", 0) as stdin:

        def call() -> None:
            try:
                ended.append(
                    session.call(request, stdin=stdin, on_output=_writer(taken), on_errors=_writer(2), is_live=True)
                )
            except (SerriedError, OSError, ValueError) as lost:  # ValueError: a closed file, after Ctrl-C
                ended.append(lost if isinstance(lost, SerriedError) else ConnectionLost(str(lost)))
            finally:
                os.close(taken)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        try:
            last = carry(takes, gives)
        except BaseException:
            session.close()
            thread.join(_GLANCE_SECONDS)  # the thread may still be connecting
            raise
        finally:
            for descriptor in (takes, gives):
                os.close(descriptor)
        thread.join()
    problem = ended[0]
    if isinstance(problem, ConnectionLost):
        hint = "the same command opens it again; the run is not affected"
        raise NotConnected(f"the connection to `{error.cluster}` broke, and its tunnel with it", hint=hint)
    if isinstance(problem, SerriedError):
        raise problem
    if last is None:  # the command printed the reason
        raise SystemExit(problem or 1)
    return last


def session_with(cluster: str) -> RemoteSession:
    return RemoteSession(cluster, login_of(cluster))


def _writer(descriptor: int) -> Callable[[bytes], None]:
    """Writes all to a stream of this process. Raises BrokenPipeError if its reader has ended."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write


def _say(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def login_of(cluster: str) -> str:
    """The host, or alias of `~/.ssh/config`, that the cluster's profile names. Raises UsageError without one."""
    host = _hosts().get(cluster)
    if not host:
        hint = f'`login = "HOST"` under `[clusters.{cluster}]` in ~/.config/serried/config.toml'
        raise UsageError(f"cluster `{cluster}` has no login node in its profile", hint=hint)
    return host


def _hosts() -> dict[str, str]:
    return {each.name: each.login for each in config.catalogue(Path.cwd(), os.environ).clusters if each.login}


def environment(error: Elsewhere) -> dict[str, str]:
    """Variables for the command over there: its settings, its terminal, and the secrets that the project names."""
    columns, lines = shutil.get_terminal_size()
    own = [name for name in os.environ if name.startswith("SERRIED_") and name not in names.JOB_VARIABLES]
    return {
        **{name: os.environ[name] for name in (*_OF_TERMINAL, *own) if name in os.environ},
        **error.variables,
        names.AT: error.cluster,
        **({names.MEANT: error.run} if error.run else {}),
        "SERRIED_CLUSTER": error.cluster,
        "COLUMNS": str(columns),
        "LINES": str(lines),
    }


def listings(
    clusters: Sequence[str],
    most: int = _REMEMBERED,
    word: str = "",
    users: Sequence[str] = (),
    opened: Callable[[str], AbstractContextManager[RemoteSession]] | None = None,
) -> list[ClusterRuns]:
    """The runs of each cluster, as it answers within two seconds, else as it answered last.

    Clusters that the settings no longer name are left out. With `word`, older runs are those whose id, name or
    experiment begins with it. With `users`, the runs are those that these users share; without an answer there are
    none, as they are not stored here. `opened` returns open sessions.
    """
    unknown = {cluster: ClusterRuns(cluster, 0.0, []) for cluster in clusters}
    known = unknown if users else {cluster: index.last_answer(cluster) for cluster in clusters}
    try:
        hosts = _hosts()
    except SerriedError as error:
        return [answer._replace(problem=error) for answer in known.values()]
    answers = {cluster: answer for cluster, answer in known.items() if cluster in hosts}

    def ask(cluster: str) -> None:
        try:
            with opened(cluster) if opened else RemoteSession(cluster, hosts[cluster]) as session:
                answers[cluster] = _ask(session, max(most, _REMEMBERED), _GLANCE_SECONDS, word, users)
        except SerriedError as error:
            answers[cluster] = answers[cluster]._replace(problem=error)

    threads = {cluster: threading.Thread(target=ask, args=(cluster,), daemon=True) for cluster in answers}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + _GLANCE_SECONDS
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0.0))
    for cluster, thread in threads.items():
        if thread.is_alive():
            late = NotConnected(f"`{cluster}` has not answered within {_GLANCE_SECONDS:.0f} seconds")
            answers[cluster] = answers[cluster]._replace(problem=late)
    return [*answers.values()]


def _ask(session: RemoteSession, most: int, seconds: float, word: str = "", users: Sequence[str] = ()) -> ClusterRuns:
    """Ask a cluster for its runs, and store the answer unless it is about other users."""
    found = session.ask("listing", {"most": most, "word": word, "users": list(users)}, seconds=seconds)
    try:
        answer = ClusterRuns(session.cluster, time.time(), index.runs_elsewhere(found["runs"]))
    except (LookupError, TypeError, ValueError):
        raise SerriedError(f"what `{session.cluster}` sent are not runs") from None
    if not users:
        with contextlib.suppress(OSError):  # a full home: the answer is still valid
            index.remember(answer if word else answer._replace(runs=answer.runs[:_REMEMBERED]))
    return answer
