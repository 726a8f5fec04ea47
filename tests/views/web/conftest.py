"""The web page on a real port, with runs on disk and a scheduler that tests tell what to answer."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest
import uvicorn

from building import RunOnDisk
from fake_scheduler import FakeScheduler
from serried import schedulers
from serried.cli import web_page
from serried.views.web import server
from serried.views.web.app import application
from serried.views.web.runs import Runs
from waiting import until

TOKEN = "t" * 32


@pytest.fixture
def slurm(monkeypatch):
    fake = FakeScheduler()
    monkeypatch.setattr(schedulers, "get", fake)
    return fake


@pytest.fixture
def make(tmp_path):
    return lambda *arguments, **options: RunOnDisk(tmp_path / "scratch", *arguments, **options)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def value(self):
        return json.loads(self.text)


@dataclass(frozen=True)
class Page:
    port: int
    server: uvicorn.Server

    def open_connections(self):
        return len(self.server.server_state.connections)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/#token={TOKEN}&/"

    def ask(self, path, *, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def api(self, view, **query):
        return self.ask(f"/api/{view}?{urlencode(query, doseq=True)}", Authorization=f"Bearer {TOKEN}")


@pytest.fixture
def page(slurm):  # noqa: ARG001 - no page here asks a real scheduler
    listener = web_page.loopback_listener("page", 0)
    runs = Runs()
    runs.start()
    served = server.server(application(runs, TOKEN))
    thread = threading.Thread(target=served.run, kwargs={"sockets": [listener]})
    thread.start()
    until(lambda: served.started)
    yield Page(listener.getsockname()[1], served)
    served.should_exit = True
    runs.close()
    thread.join(60)
    listener.close()
