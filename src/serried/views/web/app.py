"""The routes of the web page.

Its files are open to anybody; the API answers only to a token, which the page gets behind the `#` of the address that
`serried watch --web` prints: browsers do not send that part, and no log has it. Nothing that a browser can ask for
changes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from serried.base.errors import SerriedError, UsageError
from serried.base.files import read_json
from serried.records import index
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.status import RunStatus
from serried.schema import SCHEMA, names
from serried.sweeps import results
from serried.views.plan_lines import command_text
from serried.views.web import documents, server
from serried.views.web.runs import Runs
from serried.views.web.server import Guard, error

MOST_RUNS = 20
_OF_ONE_RUN = frozenset(("schema", "run", "name", "created", "command", "site", "source", "array", "sweep", "resume"))
"""Parts of a plan that differ between any two runs, or that say the same as another row."""


def compare(chosen: Sequence[tuple[Selection, RunStatus]]) -> dict[str, Any]:
    """The rows of the list, and the settings that differ, each with the value of every run in turn."""
    settings = [_settings(selection) for selection, _ in chosen]
    differing = {name: [one.get(name) for one in settings] for one in settings for name in one}
    return {
        "runs": [documents.row(status) for _, status in chosen],
        "settings": {name: values for name, values in differing.items() if any(value != values[0] for value in values)},
    }


def _settings(selection: Selection) -> dict[str, Any]:
    record = selection.record
    with contextlib.suppress(RecordUnreadable):
        plan = record.plan_of(selection.task)
        own = {name: value for name, value in plan.to_json().items() if name not in _OF_ONE_RUN}
        trained = (read_json(selection.place.results / names.CONFIG_FILE) or {}).get("config")
        if isinstance(trained, Mapping):  # with the defaults of the program
            own["config"] = {**plan.config, **trained}
        commit = (read_json(record.directory.source) or {}).get("commit")
        return {
            "command": command_text(plan),
            "commit": commit and f"{commit}{' with changes' if record.directory.diff.exists() else ''}",
            "cluster": plan.site.name,
            **dict(_flat(own)),
        }
    return {}


def _flat(value: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, Mapping) and entry:
            yield from _flat(entry, f"{begin}{name}.")
        else:
            yield begin + name, entry


STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    **server.HEADERS,
}
API = "/api/"

View = Callable[[Runs, Request], dict[str, Any]]


def application(runs: Runs, token: str) -> ASGIApp:
    """The whole page as an ASGI application. `token` is what the API's `Authorization: Bearer` must have."""
    routes = [Route(f"{API}{name}", _route(runs, view)) for name, view in VIEWS.items()]
    static = Mount("/", StaticFiles(directory=STATIC, html=True))
    inner = Starlette(routes=[*routes, static], middleware=[Middleware(GZipMiddleware, minimum_size=1024)])

    def has_token(request: Request) -> bool:
        if not request.scope["path"].startswith(API):  # as routes do: `request.url` may have the Host
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme == "Bearer" and secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())

    return Guard(inner, "serried watch --web", has_token, headers=HEADERS)


def _route(runs: Runs, view: View) -> Callable[[Request], Response]:
    """An endpoint that a thread runs: it reads files."""

    def answer(request: Request) -> Response:
        try:
            value = {"schema": SCHEMA, **view(runs, request)}
        except SerriedError as wrong:
            return error(404 if not isinstance(wrong, UsageError) else 400, wrong.message, wrong.hint or "")
        text = json.dumps(value, separators=(",", ":"), default=str).encode()
        tag = f'"{hashlib.sha256(text).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-store"})
        return Response(text, media_type="application/json", headers={"ETag": tag, "Cache-Control": "no-store"})

    return answer


def _selection(request: Request) -> index.Selection:
    return index.find(request.query_params.get("run", ""))


def _number(request: Request, name: str) -> int | None:
    """A number in the address; None if it is missing. Raises UsageError for anything else."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f"`{name}` must be a number")
    return int(text)


def _runs(runs: Runs, request: Request) -> dict[str, Any]:
    """The newest `limit` runs, or all."""
    found, limit = runs.all(), _number(request, "limit")
    notice = documents.notice(runs.problem, found)
    return {"runs": [*map(documents.row, found[:limit])], "total": len(found), "notice": notice}


def _run(runs: Runs, request: Request) -> dict[str, Any]:
    selection = _selection(request)
    status = runs.one(selection)
    notice = documents.notice("" if status.has_ended else runs.problem, [status])
    return {**documents.run(selection, status), "notice": notice}


def _curves(runs: Runs, request: Request) -> dict[str, Any]:
    selection, wanted = _selection(request), request.query_params.getlist("name")
    rank, metric = _number(request, "rank") or 0, selection.record.summary.metric
    return runs.curves.look(selection.place, rank, wanted, metric)


def _log(_: Runs, request: Request) -> dict[str, Any]:
    name = request.query_params.get("rank", "0")
    return documents.log(_selection(request), name, _number(request, "attempt"), _number(request, "offset"))


def _compare(runs: Runs, request: Request) -> dict[str, Any]:
    words = request.query_params.getlist("run")
    if not 0 < len(words) <= MOST_RUNS:
        raise UsageError(f"1 to {MOST_RUNS} runs can be compared")
    chosen = [(selection, runs.one(selection)) for selection in map(index.find, words)]
    notice = documents.notice(runs.problem, [status for _, status in chosen])
    return {**compare(chosen), "notice": notice}


def _sweep(runs: Runs, request: Request) -> dict[str, Any]:
    metric = request.query_params.get("metric")
    look = lambda records: [runs.one(index.Selection(record)) for record in records]  # noqa: E731
    return documents.sweep(results.results_of(_selection(request), metric, look))


VIEWS: dict[str, View] = {
    "runs": _runs,
    "run": _run,
    "curves": _curves,
    "heatmap": lambda _, request: documents.heatmap(
        _selection(request), request.query_params.get("quantity", "busy"), _number(request, "attempt")
    ),
    "report": lambda runs, request: documents.report(selection := _selection(request), runs.one(selection)),
    "log": _log,
    "file": lambda _, request: documents.file(_selection(request), request.query_params.get("name", "")),
    "sweep": _sweep,
    "compare": _compare,
}
