"""Write the JSON Schemas of `--json`: `python tools/json_schemas.py src/serried/views/json_schemas.json`.

A shape below is written briefly. Letters are types: `s` text, `n` number, `i` whole number, `b` boolean, `o` any
object, `a` any array, `x` anything; `?` behind them allows null. `#run` refers to a definition, `[shape]` is an array,
`(shape,)` a shape or null, and a dictionary an object: `key?` may be missing, and `*` stands for any key.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Shape = dict[str, Any]

_TYPES = {"s": "string", "i": "integer", "n": "number", "b": "boolean", "o": "object", "a": "array"}


def schema(shape: Any) -> dict[str, Any]:
    if isinstance(shape, str) and shape.startswith("#"):
        return {"$ref": f"#/definitions/{shape[1:]}"}
    if isinstance(shape, str):
        types = [_TYPES[letter] for letter in shape.rstrip("?") if letter != "x"] + ["null"] * shape.endswith("?")
        return {"type": types if len(types) > 1 else types[0]} if types else {}
    if isinstance(shape, list):
        return {"type": "array", "items": schema(shape[0])}
    if isinstance(shape, tuple):
        return {"anyOf": [schema(shape[0]), {"type": "null"}]}
    if "*" in shape:
        return {"type": "object", "additionalProperties": schema(shape["*"])}
    properties = {name.rstrip("?"): schema(value) for name, value in shape.items()}
    return {"type": "object", "properties": properties, "required": [name for name in shape if name[-1:] != "?"]}


def one_of(*shapes: Any) -> dict[str, Any]:
    return {"anyOf": [schema(shape) for shape in shapes]}


_CONDITION: Shape = {"code": "s?", "message": "s", "nodes?": ["s"]}
_FAILURE: Shape = {"rank": "i?", "node": "i", "host": "s", "local_rank": "i", "exit_code": "i?", "signal": "i?"}
_FAILURE |= {"seconds": "n", "error?": "s", "launch?": "s", "tail": ["s"]}
_LIVE: Shape = {"at": "s?", "stale": "b", "step": "i?", "total_steps": "i?", "step_age": "n?", "stalled": "b"}
_LIVE |= dict.fromkeys(("samples_per_second", "steps_per_second", "output_age", "data_wait", "gpu_busy"), "n?")
_LIVE |= dict.fromkeys(("seconds_left", "limit_seconds_left", "notice_seconds_left"), "n?")
_PROGRESS: Shape = {**_LIVE, "metrics": {"*": "ns"}, "ranks": "i?", "warnings": ["o"]}
_RUN: Shape = {
    "id": "s",
    **dict.fromkeys(("name", "project", "experiment", "cluster", "scheduler", "job"), "s?"),
}
_RUN |= {"state": "s", "exit_code": "i?", "cause": "s?", "message": "s?", "conditions": ["#condition"], "reason": "s?"}
_RUN |= {"attempt": "i?", **dict.fromkeys(("created", "expected_start", "started", "ended", "stale_since"), "s?")}
_RUN |= {"seconds": "n?", "nodes": "i?", "ranks_per_node": "i?", "gpus_per_node": "i?", "node_names": ["s"]}
_RUN |= {"resumed_from": "s?", "rerun_of": "s?", "after": ["s"], "smoke": "b?", "rehearsal": "b?", "directory": "s?"}
_RUN |= {"warnings": ["#condition"], "progress": "#progress", "tasks": ({"*": "s"},)}
_EXPLAINED: Shape = {
    "id": "s",
    "task": "i?",
    "state": "s",
    "cause": "s?",
    "message": "s?",
    "exit_code": "i?",
    "meaning": "s?",
}
_FAILED: Shape = {**_EXPLAINED, "advice_for": "s?", "first_failure": ("#failure",), "logs": "s"}
_SIZE: Shape = {"bytes": "i", "files": "i", "oldest": "s?", "newest": "s?", "unread": "i"}
_NOTE: Shape = {"rule": "s", "is_serious": "b", "fact": "s", "change": "s?", "advice": "s?", "why": "s"}
_ONE = "A run, or a task of an array. Times are UTC in ISO 8601; `tasks` has ranges by state."

DEFINITIONS = {
    "condition": schema(_CONDITION) | {"description": "A statement: its code stays the same, its sentence may change."},
    "failure": schema(_FAILURE) | {"description": "The rank that failed first; `rank` is null for a job script."},
    "live": schema(_PROGRESS) | {"description": "What a run does. Durations are seconds; a metric of NaN is a text."},
    "progress": one_of("#live", {"tasks": {"*": "#live"}}) | {"description": "Null unless the run runs."},
    "run": schema(_RUN) | {"description": _ONE},
    "failed_task": schema(_FAILED),
    "size": schema(_SIZE),
    "note": schema(_NOTE),
}
DEFINITIONS["progress"]["anyOf"].append({"type": "null"})

_RUNS: Shape = {"schema": "i", "runs": ["#run"]}
_WHY: Shape = {"meaning": "s?", "advice_for": "s?", "advice": ["s"], "first_failure": ("#failure",), "tail": ["s"]}
_WHY |= {"asked_by": "s?", "failures": (["#failed_task"],)}
_SHOW: Shape = {"plan": "o?", "source": "o?", "submissions": ["o"], "config": "o?", "tried_out": "o?"}
_SHOW |= {"attempts": ["o"], "missing": ["o"], "timeline": ["o"], "files": {"*": "s"}, "outputs": "o?"}
_PLAN: Shape = {"schema": "i", "plan": "o", "commands": "a?", "argv": ["s"], "jobs?": "a", "environment": ["s"]}
_PLAN |= {"script": "s", "setup": "s?", "user_script": "s?", "snapshot": "a?", "warnings": ["s"], "notes": ["s"]}
_PLAN["risks"] = [{"code": "s", "message": "s"}]
_GPUS = [{"type": "s?", **dict.fromkeys(("total", "free", "out", "planned", "most_on_one_node", "in_use"), "i")}]
_SOONER: Shape = {
    "kind": "s",
    "nodes": "i",
    "gpus_per_node": "i",
    "gpu_type": "s?",
    "partition": "s?",
    "time_seconds": "i?",
}
_OPENINGS: Shape = {"ahead_jobs": "i?", "fits_in": ["s"], "sooner": [_SOONER]}
_PARTITION: Shape = {"name": "s", **dict.fromkeys(("is_open", "is_default", "is_for_me", "is_hidden"), "b")}
_PARTITION |= {"limit_seconds": "i?", "gpus": _GPUS, "nodes": "i", "idle_nodes": "i", "cpus": "i", "free_cpus": "i"}
_PARTITION |= dict.fromkeys(("running_jobs", "waiting_jobs", "waiting_gpus", "blocked_jobs"), "i")
_WAITING: Shape = {
    "job": "s",
    "run": "s?",
    "tasks": "i",
    "partitions": ["s"],
    "nodes": "i",
    "gpus": "i",
    "gpu_type": "s?",
}
_WAITING |= {"time_seconds": "i?", "reason": "s?", "meaning": "s", "cause": "s?", "expected_start": "s?", **_OPENINGS}
_QUEUE: Shape = {"schema": "i", "cluster": "s", "scheduler": "s", "as_of": "s", "age_seconds": "n", "problem": "s?"}
_QUEUE |= {"gpus": _GPUS, "partitions": [_PARTITION], "sees_all_jobs": "b", "waiting": [_WAITING]}
_QUEUE |= {"plan": ({"experiment": "s", "tasks": "i", "shape": "o", **_OPENINGS},)}
_LACKING: Shape = {"task": "i?", "attempt": "i", "node": "i", "host": "s", "folder": "s", "kinds": ["s"], "files": "i?"}
_LACKING |= {"bytes": "i?", "names": ["s"], "problem": "s?", "is_lost": "b", "brought_files": "i", "brought_bytes": "i"}
_FETCH: Shape = {
    "schema": "i",
    "run": "s",
    "dry_run": "b",
    "nodes": [_LACKING],
    "to": "s?",
    "copied": ["s"],
    "bytes": "i",
}
_FETCH |= {"same": "i", "kept": ["s"], "problems": {"*": "s"}}
_THING: Shape = {"kind": "s", "name": "s", "run": "s?", "path": "s", "used": "s?", "state": "s?", "note": "s?"}
_THING |= {"checkpoints": "i?"}
_GONE = [{**_THING, **_SIZE, "removed": "b", "problem": "s?"}]
_TRIAL: Shape = {
    "trial": "i",
    "id": "s",
    "parameters": "o",
    "state": "s",
    "value": "ns?",
    "seconds": "n?",
    "message": "s?",
}
_SWEEP: Shape = {
    "schema": "i",
    "sweep": "s",
    "service": "s?",
    "runs": ["s"],
    "metric": "s?",
    "goal": "s",
    "trials": [_TRIAL],
}
_SWEEP |= {"groups": [{"parameters": "o", "trials": ["i"], "mean": "n?", "deviation": "n?"}], "importance": "o?"}
_USAGE: Shape = {"id": "s", "name": "s", "state": "s", "job": "s?", "cluster": "s", "command": "s"}
_USAGE |= {"attempt": "i?", "started": "s?", "ended": "s?", "seconds": "n?", "limit_seconds": "n?", "nodes": "i"}
_USAGE |= {"node_names": ["s"], "ranks": "i", "gpus": "i", "gpu_type": "s?", "cpus": "i?", "memory": "n?"}
_USAGE |= dict.fromkeys(("has_default_memory", "has_default_cpus", "has_whole_nodes"), "b") | {"missing": "s?"}
_USAGE |= dict.fromkeys(("gpu_busy", "gpu_memory", "power", "cpu", "node_memory"), "a?")
_USAGE |= dict.fromkeys(("gpu_memory_total", "power_cap", "cpus_per_node", "memory_per_node"), "n?")
_SPREAD: Shape = {"kind": "s", "count": "i", "median": "n", "extreme": "n", "where": "s", "host": "s"}
_USAGE |= {"samples_per_second": "n?", "measured?": "o", "spread?": [_SPREAD], "notes?": ["#note"]}
_SETTING: Shape = {"key": "s", "value": "x", "text": "s", "origin": "s", "source": "s", "meaning?": "s"}
_CLUSTER: Shape = {"name": "s", "scheduler": "s", "origin": "s", "here": "b", "retired": "b"}

_SUBMITTED = one_of(_RUNS, _PLAN, {"schema": "i", "submissions": ["o"]})
COMMANDS = {
    "ps": schema(_RUNS),
    "wait": schema(_RUNS),
    "why": schema({"schema": "i", "runs": [{**_RUN, **_WHY}]}),
    "show": one_of({"schema": "i", "runs": [{**_RUN, **_SHOW, "failures": (["#failed_task"],)}]}, _RUNS),
    **dict.fromkeys(("run", "submit", "rerun", "sweep", "sweep submit", "sweep retry", "sweep add"), _SUBMITTED),
    "sweep show": {"anyOf": [schema(_SWEEP), {"type": "object", "not": {"required": ["schema"]}}]},  # --best
    "queue": schema(_QUEUE),
    "report": one_of(
        {"schema": "i", "runs": [_USAGE], "notes": ["#note"], "omitted": "i"},
        {"schema": "i", "rules": [{"rule": "s", "title": "s", "page": "s"}]},
    ),
    "fetch": schema(_FETCH),
    "clean": one_of(
        {"schema": "i", "things": [{**_THING, **_SIZE, "parts": {"*": "#size"}}], **_SIZE},
        {"schema": "i", "dry_run": "b", "things": _GONE, "stay": [{**_THING, "needed": "s"}]},
        {"schema": "i", "dry_run": "b", "left": [{"host": "s", "name": "s", "stays": "s"}]},
    ),
    "config show": schema({"schema": "i", "settings": [_SETTING], "warnings": ["s"], "notes": ["s"]}),
    **dict.fromkeys(("clusters", "clusters list"), schema({"schema": "i", "clusters": [_CLUSTER]})),
}


def text() -> str:
    """A line for each definition and command."""
    parts = []
    for part, entries in (("definitions", DEFINITIONS), ("commands", COMMANDS)):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
        parts.append(f" {json.dumps(part)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
