"""Runs on clusters behind a login node: `FarRun` on a laptop calls `Run` over there.

    submit, runs, find, FarRun   here: as in `serried.api`, across the link
    answer                       over there: one call of the API

Sessions stay open until this process ends: `run.state` in a loop must not log in each time. The login node answers in
JSON. Only `Run.result` unpickles, and only the value that the user's own function returned.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import itertools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from serried.api import CONSENT_HINT, Calls, Output, Run, RunList, State, has_own_python, named
from serried.base import frames, shell
from serried.base.errors import (
    Elsewhere,
    NotConnected,
    Risk,
    RunNotFoundError,
    SerriedError,
    SerriedWarning,
    UsageError,
)
from serried.base.text import ago, iso, spell
from serried.records import index
from serried.remote import project, relay
from serried.remote.client import RECONNECT_SECONDS, ConnectionLost, RemoteRequest, RemoteSession
from serried.schema import names
from serried.submission import environments
from serried.submission.again import prepare_again
from serried.submission.deliver import Prepared, deliver, refuse_in_place, unqueued
from serried.submission.prepare import entering, prepare
from serried.submission.reconcile import find_out
from serried.submission.request import Request, decide, secrets_in

_EVERYTHING = 10_000
"""The most runs of one cluster in a list."""
_TRIES = 5
"""Attempts to submit: the warnings of the cluster may differ each time."""
_RAISED = {kind.__name__: kind for kind in (TimeoutError, TypeError, ValueError)}
_ID = re.compile(r"[a-z2-9]{6}(/[0-9]+)?")
Decode = Callable[[Any], Any]
"""Turns an answer into the value of a call. Raises LookupError, TypeError or ValueError if it is not an answer."""

_sessions: dict[tuple[int, str], list[RemoteSession]] = {}
"""Free sessions, by process and cluster: a forked process starts without any."""


@atexit.register
def close() -> None:
    for (process, _), free in _sessions.items():
        while process == os.getpid() and free:
            free.pop().close()


@contextlib.contextmanager
def _session(cluster: str) -> Iterator[RemoteSession]:
    free = _sessions.setdefault((os.getpid(), cluster), [])
    try:
        session = free.pop()
    except IndexError:
        session = relay.session_with(cluster)
    if not session.is_open:
        session.close()
    try:
        yield session
    except BaseException as error:
        if not isinstance(error, (SerriedError, SerriedWarning)):  # an answer may still arrive on it
            session.close()
        raise
    finally:
        free.append(session)


def ask(
    cluster: str, call: str, decode: Decode, run: str = "", *, content: bytearray | None = None, **arguments: Any
) -> Any:
    """Call the API over there. Repeats the call if the connection breaks after a long wait, as in `Run.wait`."""
    while True:
        began = time.monotonic()
        with _session(cluster) as session:
            try:
                values = {"call": call, "run": run, "arguments": arguments}
                received = bytearray() if content is None else content
                received.clear()
                found = session.ask("python", values, env={names.AT: cluster}, on_data=received.extend)
                break
            except ConnectionLost:
                passed = time.monotonic() - began
                if passed < RECONNECT_SECONDS:
                    raise
                if arguments.get("timeout") is not None:
                    arguments["timeout"] = max(arguments["timeout"] - passed, 0.0)
    return _value(found, cluster, decode)


def _value(found: Mapping[str, Any], cluster: str, decode: Decode, stacklevel: int = 4) -> Any:
    """Issue the warnings of an answer and return its value. Raises the exception of the call over there."""
    try:
        told = [str(text) for text in found["warnings"]]
        raised = found["raised"] and _RAISED[found["raised"][0]](str(found["raised"][1]))
        value = None if raised else decode(found["value"])
    except (LookupError, TypeError, ValueError):
        raise SerriedError(f"what `{cluster}` sent is not an answer") from None
    for text in told:
        warnings.warn(text, SerriedWarning, stacklevel=stacklevel)
    if raised:
        raise raised
    return value


def _checked(value: Any, *kinds: type) -> Any:
    """Return the value. Raises TypeError unless it has one of these types."""
    if type(value) not in kinds:
        raise TypeError
    return value


def _asked(ours: Any, decode: Callable[[FarRun, Any], Any]) -> Any:
    """A member of FarRun that calls `ours`, a member of Run, over there."""
    function: Any = ours.fget if isinstance(ours, property) else ours
    signature = inspect.signature(function)

    @functools.wraps(function)
    def member(self: FarRun, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments["self"]
        return ask(self._cluster, function.__name__, functools.partial(decode, self), self.id, **arguments)

    return property(member) if isinstance(ours, property) else member


class FarRun(Run):
    """A run on a cluster behind a login node. Each member needs a connection, else raises NotConnected."""

    _cluster: str

    def __init__(self, cluster: str, run: str, name: str) -> None:
        """Raises TypeError or ValueError for an invalid id or name: both come from the login node."""
        if not _ID.fullmatch(run):
            raise ValueError
        self._cluster, self._run, self._name = cluster, run, str(name)

    def __repr__(self) -> str:
        return f"<serried.Run {self.id} on {self._cluster}>"

    @property
    def id(self) -> str:
        return self._run

    @property
    def name(self) -> str:
        return self._name

    directory = _asked(Run.directory, lambda _, path: PurePosixPath(path))
    state = _asked(Run.state, lambda _, word: State(word))
    done = _asked(Run.done, lambda _, value: _checked(value, bool))
    exit_code = _asked(Run.exit_code, lambda _, code: _checked(code, int, type(None)))
    job = _asked(Run.job, lambda _, job: _checked(job, str, type(None)))
    tasks = _asked(Run.tasks, lambda self, ids: RunList(FarRun(self._cluster, each, self.name) for each in ids))
    to_json = _asked(Run.to_json, lambda self, document: {**document, "cluster": self._cluster})
    wait = _asked(Run.wait, lambda _, word: State(word))
    logs = _asked(Run.logs, lambda _, text: _checked(text, str))
    metrics = _asked(Run.metrics, lambda _, rows: _checked(rows, list))
    outputs = _asked(Run.outputs, lambda _, rows: [_output(**row) for row in rows])

    def _returned(self, timeout: float | None) -> bytes:
        content = bytearray()
        ask(self._cluster, "returned", str, self.id, timeout=timeout, content=content)
        return bytes(content)

    @functools.wraps(Run.rerun)
    def rerun(self, *, yes: bool = False, **how: Any) -> Run:  # type: ignore[override]  # `bind` refuses others
        inspect.signature(Run.rerun).bind(self, **how)
        variables = secrets_in(Path.cwd(), self._cluster, os.environ)
        error = Elsewhere(self._cluster, f"run `{self.id}` is on cluster `{self._cluster}`", variables=variables)
        return submit(error, {"run": self.id, "how": how}, Path() if how.get("new_code") else None, yes=yes)

    def stop(self, *, save: bool = False, now: bool = False) -> None:
        how = {"save": save, "now": now}
        with _session(self._cluster) as session:
            request = _request(Elsewhere(self._cluster, ""), call="stop", run=self.id, arguments=how)
            found = session.change(request, b"")
        _value(found, self._cluster, bool, stacklevel=3)


def _request(error: Elsewhere, place: Mapping[str, Any] | None = None, **values: Any) -> RemoteRequest:
    env = relay.environment(error)
    return RemoteRequest((), env, changes=True, directory=place, function="python", values=values)


def _output(path: str, file: str, **facts: Any) -> Output:
    return Output(Path(path), PurePosixPath(file), **facts)  # type: ignore[arg-type]  # not a file of this machine


def submit(
    error: Elsewhere, document: Mapping[str, Any], directory: Path | None, calls: Calls | None = None, *, yes: bool
) -> Run:
    """Submit over there, at most once, for the caller of `submit` or `rerun`. The first answer may hold only warnings.

    Sends the project that contains `directory` first.
    """

    def observe(_sent: int, size: int) -> None:
        if size > relay.MUCH_BYTES and not yes:
            raise UsageError(f"refusing to send {spell(size)}", hint=f"pass `yes=True`; {relay.LARGE}")

    sent = None if directory is None else project.survey(directory, os.environ, error.data)
    values, content = dict(document), b""
    seen: list[str] = []
    run: Run
    if calls and sent:
        content = calls.pickled(sent.root)
        has_code = b"cloudpickle.cloudpickle" in content
        values["function"] = {"name": calls.short_name, "version": sys.version_info[:2], "has_code": has_code}
    try:
        frames.encode_json(0, frames.REQUEST, values)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"a setting cannot be sent to `{error.cluster}`: {problem}") from None
    with _session(error.cluster) as session:
        place = project.send(session, sent, observe) if sent else None
        for _ in range(_TRIES):
            arguments = {**values, "seen": seen}
            told = session.change(_request(error, place, call="submit", arguments=arguments), content)
            new, run, later = _value(told, error.cluster, lambda it: _submitted(error.cluster, *it), stacklevel=4)
            for text, code in new:
                if code and not yes:
                    raise UsageError(text, hint=CONSENT_HINT, code=code)
                warnings.warn(text, SerriedWarning, stacklevel=3)
                seen.append(text)
            if run:
                relay.renew(session)
                with contextlib.suppress(SerriedWarning):  # an error would lose the submitted run for the caller
                    for text in later:
                        warnings.warn(text, SerriedWarning, stacklevel=3)
                return run
    raise SerriedError(f"the warnings of `{error.cluster}` change with each look, and nothing was submitted")


def _submitted(
    cluster: str, new: Iterable[Sequence[str]], run: Sequence[str] | None, later: Iterable[str]
) -> tuple[list[tuple[str, str]], FarRun | None, list[str]]:
    """Read an answer of `_submit`: new warnings with their codes, the run, and later warnings."""
    found = FarRun(cluster, *run) if run else None
    return [(str(text), str(code)) for text, code in new], found, [str(text) for text in later]


def runs(clusters: Sequence[str]) -> Iterator[tuple[float, Run]]:
    """The runs on `clusters`, with the time of their submission, as `serried ps` lists them."""
    answers = relay.listings(clusters, _EVERYTHING, opened=_session)
    _warn_of(answers, stacklevel=4)
    for answer, found in index.each_once(answers):
        for run in found:
            yield run.created, FarRun(answer.cluster, run.id, run.name)


def _warn_of(answers: Iterable[index.ClusterRuns], stacklevel: int) -> None:
    for answer in answers:
        if answer.problem:
            text = f"{answer.problem.message}; its runs are those of {ago(time.time() - answer.asked)}"
            warnings.warn(text if answer.asked else answer.problem.message, SerriedWarning, stacklevel=stacklevel)


def find(word: str, error: SerriedError) -> Run:
    """The run of another cluster that `word` means, after `index.find` raised `error`: the index may lack new runs."""
    if isinstance(error, RunNotFoundError):
        name = word.partition("/")[0]
        word_or_any = "" if name == names.LAST_RUN else name
        _warn_of(relay.listings(index.clusters(), word=word_or_any, opened=_session), stacklevel=4)
        try:
            return _found(word)
        except Elsewhere as known:
            error = known
    if not isinstance(error, Elsewhere):
        raise error
    run: Run = ask(error.cluster, "find", lambda pair: FarRun(error.cluster, *pair), error.meant(word))
    return run


def described(found: Iterable[Run]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Each run elsewhere as JSON and as a row of a table, with one query for each cluster.

    Runs of a cluster that is not connected are as it listed them last. Raises NotConnected if one was never listed.
    """
    rows: dict[str, tuple[dict[str, Any], list[str]]] = {}
    there = sorted((str(run._cluster), run.id) for run in found if run._cluster is not None)  # noqa: SLF001 - of this room
    for cluster, pairs in itertools.groupby(there, key=lambda pair: pair[0]):
        own = [run for _, run in pairs]
        try:
            rows |= ask(cluster, "described", functools.partial(_rows, cluster, own), runs=own)
        except NotConnected as lost:
            known = index.last_answer(cluster)
            last = {run.id: run for run in known.runs}
            if not last.keys() >= set(own):
                raise
            _warn_of([known._replace(problem=lost)], stacklevel=5)
            since, stale = f"as of {ago(time.time() - known.asked)}", {"stale_since": iso(known.asked)}
            for run in own:
                row = [run, last[run].name, str(last[run].status.get("state")), "", "", since]
                rows[run] = {**last[run].status, "cluster": cluster, **stale}, row
    return rows


def _rows(cluster: str, own: list[str], found: list[Any]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    return {run: ({**found[at][0], "cluster": cluster}, list(map(str, found[at][1]))) for at, run in enumerate(own)}


# The functions below run over there.


def answer(values: Mapping[str, Any], content: BinaryIO, output: BinaryIO) -> dict[str, Any]:
    """Make a call of the API. Return its value, its warnings, and its exception if that is not a SerriedError."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SerriedWarning)
        value, raised = None, None
        try:
            value = _called(values["call"], values.get("run", ""), values["arguments"], content, output)
        except tuple(_RAISED.values()) as error:
            raised = next(name for name, kind in _RAISED.items() if isinstance(error, kind)), str(error)
    texts = [str(each.message) for each in told if issubclass(each.category, SerriedWarning)]
    return {"value": json.loads(json.dumps(value, default=_encoded)), "raised": raised, "warnings": texts}


def _found(word: str) -> Run:
    selection = index.find(word)
    return Run(selection.record, selection.task)


def _called(call: str, word: str, arguments: dict[str, Any], content: BinaryIO, output: BinaryIO) -> Any:
    if call == "submit":
        return _submit(content=content.read(), **arguments)
    if call == "described":
        return RunList(map(_found, arguments["runs"])).described()
    run = _found(word)
    if call == "find":
        return run.id, run.name
    if call == "returned":
        return output.write(run._returned(**arguments))  # noqa: SLF001 - of this room
    member = getattr(run, call)
    return member(**arguments) if callable(member) else member


def _encoded(value: object) -> object:
    """Values that JSON cannot represent: runs, outputs, and others as text."""
    return value.id if isinstance(value, Run) else vars(value) if isinstance(value, Output) else str(value)


def _submit(*, content: bytes, seen: Sequence[str], **document: Any) -> tuple[Any, ...]:
    """Submit, or only return the warnings that the caller has not seen yet."""
    prepared = _prepared(content=content, **document)
    refuse_in_place(prepared)
    new = [(text, text.code if isinstance(text, Risk) else "") for text in prepared.warnings if text not in seen]
    if new:
        return new, None, []
    record = deliver(prepared)
    return [], (record.id, record.summary.name), unqueued(record)


def _prepared(
    *,
    content: bytes,
    request: Mapping[str, Any] | None = None,
    function: Mapping[str, Any] | None = None,
    run: str = "",
    how: Mapping[str, Any] | None = None,
) -> Prepared:
    if request is None:
        selection = index.find(run)
        find_out(selection.record)
        return prepare_again(selection, os.environ, **(how or {}))
    decided = decide(Request(**request), Path.cwd(), os.environ)
    plan = named(decided.plan, function["name"]) if function else decided.plan
    if function and not (has_own_python(plan) or plan.environment.modules or plan.environment.setup):
        wanted = "python{}.{}".format(*function["version"])
        python = next(filter(None, map(shell.which, (wanted, "python3"))), sys.executable)
        plan = plan._replace(command=(python, *plan.command[1:]))
    prepared = prepare(plan, decided.resolved, os.environ, decided.each, decided.jobs)
    if function and function["has_code"]:
        _check_python(prepared, function["version"])
    return prepared._replace(calls=content)


def _check_python(prepared: Prepared, version: Sequence[int]) -> None:
    """Raise UsageError unless the Python of the ranks can load a function that was pickled with its code."""
    plan, package = prepared.plan, "cloudpickle"
    if "/" in plan.command[0]:
        code = environments.ABOUT.replace("PACKAGE", package)
        found = json.loads(shell.run([plan.command[0], "-c", code], env=prepared.environment).stdout or "{}")
    else:
        found = environments.about(plan, prepared.environment, entering(plan), package)
    has, needs = str(found.get("python")), ".".join(map(str, version))
    place = f"`{plan.command[0]}`" if "/" in plan.command[0] else environments.describe(plan.environment)
    if has.split(".")[:2] != needs.split("."):
        message = f"the function needs Python {needs}, as here, and {place} has {has}"
    elif not found.get(package):
        message = f"the function needs `{package}`, and {place} does not have it"
    else:
        return
    hint = f"`venv` or `conda` of `[environment]`: one over there with Python {needs} and {package}"
    raise UsageError(message, hint=f"{hint}\nor move the function into a module of the project")
