"""A stand-in for the server of W&B, over HTTP on the loopback: it has one sweep, and hands out its trials.

The service itself cannot be had in a test. This answers what the real `wandb sweep`, `wandb agent` and `wandb.init`
request, and keeps what they report.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

KEY = "0123456789abcdef0123456789abcdef01234567"


class WandbServer:
    def __init__(self, definition: str, trials: list[dict]) -> None:
        """`definition` is the YAML of the sweep; `trials` are the parameters to hand out."""
        self.definition = definition
        self.handed: dict[str, dict] = {}
        """The parameters of each trial by the id of its run."""
        self.runs: dict[str, dict] = {}
        """What runs have said of themselves: `sweep`, `group`, `display`, and their `history`."""
        self.inits: list[str] = []
        """The id of the run at each `wandb.init`."""
        self.busy: list[dict] = []
        """The trials that agents reported as running, of each heartbeat."""
        self.created: list[dict] = []
        """The variables of each sweep that was created."""
        self.keys: set[str] = set()
        self.to_stop: set[str] = set()
        """The ids of runs that the service wants to end, as its `early_terminate` does."""
        self._trials = list(trials)
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def query(self, text: str, variables: dict) -> dict:
        """The answer to one request of GraphQL."""
        names = re.findall(r"\b(?:query|mutation)\s+(\w+)", text)
        method = re.sub(r"([A-Z])", r"_\1", names[0]).lower() if names else ""
        answer = getattr(self, method, None) if method else None
        with self._lock:
            return answer(variables) if answer else {}

    def _viewer(self, _: dict) -> dict:
        return {"viewer": {"id": "1", "entity": "ada", "username": "ada", "flags": "{}", "teams": {"edges": []}}}

    def _sweep_with_runs(self, variables: dict) -> dict:
        sweep = {"id": "s", "name": variables["sweep"], "state": "RUNNING", "config": self.definition}
        return {"project": {"sweep": {**sweep, "method": "random", "runs": {"edges": []}}}}

    def _upsert_sweep(self, variables: dict) -> dict:
        self.created.append(variables)
        project = {"id": "p", "name": variables.get("projectName") or "digits", "entity": {"id": "e", "name": "ada"}}
        sweep = {"id": "s", "name": "x1y2z3", "project": project}
        return {"upsertSweep": {"sweep": sweep, "configValidationWarnings": []}}

    def _create_agent(self, _: dict) -> dict:
        return {"createAgent": {"agent": {"id": "agent"}}}

    def _heartbeat(self, variables: dict) -> dict:
        running = json.loads(variables["runState"])
        self.busy.append(running)
        commands: list[dict] = []
        if not running and self._trials:
            parameters, run = self._trials.pop(0), f"run{len(self.handed)}"
            self.handed[run] = parameters
            values = {name: {"value": value} for name, value in parameters.items()}
            commands = [{"type": "run", "run_id": run, "program": "train.py", "args": values}]
        elif not running:
            commands = [{"type": "exit"}]
        else:
            commands = [{"type": "stop", "run_id": run} for run in running if run in self.to_stop]
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}

    def _run_resume_status(self, variables: dict) -> dict:
        self.inits.append(variables["name"])
        return {"model": {"id": "p", "name": "digits", "entity": {"id": "e", "name": "ada"}, "bucket": None}}

    def _upsert_bucket(self, variables: dict) -> dict:
        name, project = variables.get("name") or "", variables.get("project") or "digits"
        run = self.runs.setdefault(name, {"history": []})
        for key, said in (("sweep", "sweep"), ("group", "groupName"), ("display", "displayName")):
            run[key] = variables.get(said) or run.get(key)
        entity = {"id": "e", "name": "ada"}
        bucket = {"id": name, "name": name, "displayName": run["display"] or name, "config": "{}"}
        of = {"id": "p", "name": project, "entity": entity}
        bucket.update(sweepName=run["sweep"], historyLineCount=0, project=of)
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _create_run_files(self, variables: dict) -> dict:
        sent = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": sent}}

    def stream(self, run: str, content: dict) -> None:
        """Lines of a run's files: the history has the logged values."""
        lines = content.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        with self._lock:
            self.runs.setdefault(run, {"history": []})["history"] += [json.loads(line) for line in lines]


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                content = gzip.decompress(content)
            answer: dict = {}
            if self.path == "/graphql":
                server.keys.add(self.headers.get("authorization") or "")
                request = json.loads(content)
                answer = {"data": server.query(request["query"], request.get("variables") or {})}
            elif found := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
                server.stream(found[1], json.loads(content))
            text = json.dumps(answer).encode()
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def do_GET(self) -> None:
            self.do_POST()

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
