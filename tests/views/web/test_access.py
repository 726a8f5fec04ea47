"""Who may read the web page, and that nobody can change anything by it."""

from __future__ import annotations

import contextlib
import socket

import pytest

from serried.base.errors import UsageError
from serried.views.web import server
from serried.views.web.app import HEADERS, VIEWS

TOKEN = "t" * 32


@pytest.fixture(autouse=True)
def _run(make):
    make("k3f9q2").ending()


def test_the_api_answers_to_the_token_alone(page):
    for name in VIEWS:
        for given in ("Bearer ", f"Bearer {TOKEN}x", TOKEN):
            refused = page.ask(f"/api/{name}?run=k3f9q2", Authorization=given)
            assert (refused.status, refused.value["error"]) == (403, "wrong or missing token")
        assert page.ask(f"/api/{name}?run=k3f9q2&token={TOKEN}").status == 403
    assert page.api("runs").value["total"] == 1


def test_names_of_other_hosts_are_refused(page):
    names = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0")
    for host in (*names, "", "[::", "localhost/x?", "localhost#", "a@localhost"):
        refused = page.ask("/", Host=host)
        assert (host, refused.status) == (host, 421)
    for host in ("localhost:1", "127.0.0.1", "[::1]:20000"):
        assert page.ask("/", Host=host).status == 200


def test_nothing_but_reading_is_possible(page):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.ask("/api/runs", method=method, Authorization=f"Bearer {TOKEN}").status == 405


def test_every_answer_keeps_the_browser_from_loading_or_telling_others_anything(page):
    for path in ("/", "/app.js", "/api/runs", "/missing", "/api/missing"):
        answer = page.ask(path, Authorization=f"Bearer {TOKEN}")
        assert {name: answer.headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert page.api("runs").headers["cache-control"] == "no-store"


def test_no_file_but_those_of_the_page_is_served(page):
    for path in ("/../app.py", "/%2e%2e/app.py", "/uplot/../../app.py", "/..%2fapp.py", "//etc/passwd", "/%00"):
        assert (path, page.ask(path).status) == (path, 404)


def test_an_unchanged_answer_is_not_sent_again(page):
    first = page.api("run", run="k3f9q2")
    again = page.ask("/api/run?run=k3f9q2", Authorization=f"Bearer {TOKEN}", **{"If-None-Match": first.headers["etag"]})
    assert (again.status, again.text) == (304, "")


def test_mistakes_have_a_message_and_a_hint(page):
    assert page.api("run", run="zzzzzz").value["error"] == "unknown run: `zzzzzz`"
    assert page.api("heatmap", run="k3f9q2", quantity="luck").status == 400
    for number in ("-1", "x", "9" * 30, "\uff11"):
        assert page.api("log", run="k3f9q2", offset=number).value["error"] == "`offset` must be a number"
    assert page.api("file", run="k3f9q2", name="../../exit.json").value["hint"].startswith("one of plan")


def test_connections_without_a_request_push_each_other_out_and_not_a_browser(page):
    with contextlib.ExitStack() as opened:
        for _ in range(3 * server.MOST_CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", page.port)))
        assert page.api("runs").value["total"] == 1
        assert page.open_connections() <= server.MOST_CONNECTIONS


def test_a_websocket_gets_the_page_as_any_other_request(page):
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    assert page.ask("/", **upgrade, **{"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}).status == 200


def test_a_socket_that_cannot_be_replaced_is_an_error_with_its_path(tmp_path, monkeypatch):
    path = tmp_path / "ui.sock"
    server.unix_socket(path).close()
    monkeypatch.setattr("pathlib.Path.unlink", _refuse)  # in /tmp, the file of another user
    with pytest.raises(UsageError, match=f"cannot listen on `{path}`: operation not permitted"):
        server.unix_socket(path)


def test_a_socket_is_not_opened_where_others_could_replace_it(tmp_path):
    for mode in (0o777, 0o770):
        tmp_path.chmod(mode)
        with pytest.raises(UsageError, match=f"other users could replace a socket in `{tmp_path}`"):
            server.unix_socket(tmp_path / "ui.sock")
    tmp_path.chmod(0o1777)
    server.unix_socket(tmp_path / "ui.sock").close()


def _refuse(path):
    raise PermissionError(1, "Operation not permitted", str(path))
