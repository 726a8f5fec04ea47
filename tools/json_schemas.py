"""Write the JSON Schemas of `--json`: `python tools/json_schemas.py src/serried/views/json_schemas.json`.

A shape below is written briefly. Letters are types: `s` text, `n` number, `i` whole number, `b` boolean, `o` any
object, `a` any array, `x` anything; `?` behind them allows null. `#run` refers to a definition, `[shape]` is an array,
`(shape,)` a shape or null, and a dictionary an object: `key?` may be missing, and `*` stands for any other key.
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
    others = {"additionalProperties": schema(shape["*"])} if "*" in shape else {}
    named = {name: value for name, value in shape.items() if name != "*"}
    if not named:
        return {"type": "object", **others}
    properties = {name.rstrip("?"): schema(value) for name, value in named.items()}
    required = [name for name in named if name[-1:] != "?"]
    return {"type": "object", "properties": properties, "required": required, **others}


def one_of(*shapes: Any) -> dict[str, Any]:
    return {"anyOf": [schema(shape) for shape in shapes]}


_CONDITION: Shape = {"code": "s?", "message": "s", "nodes?": ["s"]}
_FAILURE: Shape = {"rank": "i?", "node": "i", "host": "s", "local_rank": "i", "exit_code": "i?", "signal": "i?"}
_FAILURE |= {"seconds": "n", "error?": "s", "launch?": "s", "tail": ["s"]}
_LIVE: Shape = {"at": "s?", "stale": "b", "step": "i?", "total_steps": "i?", "step_age": "n?", "stalled": "b"}
_LIVE |= {"checking": "b"}
_LIVE |= dict.fromkeys(("samples_per_second", "steps_per_second", "output_age", "data_wait", "gpu_busy"), "n?")
_LIVE |= dict.fromkeys(("seconds_left", "limit_seconds_left", "notice_seconds_left"), "n?")
_PROGRESS: Shape = {**_LIVE, "metrics": {"*": "ns"}, "ranks": "i?", "warnings": ["o"]}
_RUN: Shape = {
    "id": "s",
    **dict.fromkeys(("user", "name", "project", "experiment", "cluster", "scheduler", "job"), "s?"),
}
_RUN |= {"state": "s", "exit_code": "i?", "cause": "s?", "message": "s?", "conditions": ["#condition"], "reason": "s?"}
_RUN |= {"attempt": "i?", **dict.fromkeys(("created", "expected_start", "started", "ended", "stale_since"), "s?")}
_RUN |= {"seconds": "n?", "nodes": "i?", "spare_nodes": "i?"}
_RUN |= {"ranks_per_node": "i?", "gpus_per_node": "i?", "node_names": ["s"]}
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
_POINT: Shape = {"nodes": "i", "ranks": "i", "launch": "s", "method": "s", "scaling": "s", "batch": "i?"}
_FIGURES = ("samples_per_second", "step_median", "step_p95", "spread", "data_wait", "startup_seconds")
_MEASURED: Shape = {"run": "s?", "state": "s", "reason": "s", "steps": "i", "batch": "n?", "device": "s"}
_MEASURED |= {"gpu_type": "s", "gpus": "i", "cpus": "i", "without_sync": "b", "code": "s"}
_MEASURED |= dict.fromkeys(_FIGURES, "n?")
_SPEED: Shape = {**_POINT, "runs": [_MEASURED], **dict.fromkeys(_FIGURES, "n?"), "repeats": "i", "problems": ["s"]}
_SPEED |= dict.fromkeys(("deviation", "speed_up", "efficiency", "node_efficiency", "communication"), "n?")
_SPEED |= {"cost": "n?", "is_comparable": "b", "per_rank": "n?"}
_BENCHED: Shape = {**_POINT, "repeat": "i", "without_sync": "b", "run": "s?", "submitted": "b", "refusal": "s?"}
_BENCHED |= {"state?": "s", "reason?": "s?"}
_BENCH: Shape = {"schema": "i", "bench": "s", "name": "s", "created": "s", "request": "o", "warm_up": "s"}
_BENCH |= {
    "metric_from": "s?",
    "points": [_BENCHED],
    "hours?": {"*": "n"},
    "rows?": [_SPEED],
    "device?": "s",
    "notes?": ["s"],
    "advice?": ["s"],
}
_ENVIRONMENT: Shape = {"prefix": "s?", "source": "s?", "ready": "b", "where": "s?", "modules": ["s"]}
_ENVIRONMENT |= {"module_purge": "b", "setup": "s", "check": "s?", "container": "s?"}
_SIZE: Shape = {"bytes": "i", "files": "i", "oldest": "s?", "newest": "s?", "unread": "i"}
_NOTE: Shape = {"rule": "s", "is_serious": "b", "fact": "s", "change": "s?", "advice": "s?", "why": "s"}
_FINDING: Shape = {"id": "s", "level": "s", "seen": "s", "fix": "s?", "why": "s?", "hosts": ["s"]}
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
    "finding": schema(_FINDING) | {"description": "The result of a check; `hosts` are the nodes to blame."},
    "bench": schema(_BENCH) | {"description": "Only with results: `rows`, `device`, `notes`, and `state` of points."},
    "environment": schema(_ENVIRONMENT),
    "metrics": schema({"time": "s?", "attempt": "i", "*": "nsba?"})
    | {"description": "With --follow, one on each line."},
}
DEFINITIONS["progress"]["anyOf"].append({"type": "null"})

_RUNS: Shape = {"schema": "i", "runs": ["#run"]}
_WHY: Shape = {"meaning": "s?", "advice_for": "s?", "advice": ["s"], "first_failure": ("#failure",), "tail": ["s"]}
_WHY |= {"asked_by": "s?", "checks": ["#finding"], "failures": (["#failed_task"],)}
_SHOW: Shape = {"plan": "o?", "source": "o?", "submissions": ["o"], "config": "o?", "tried_out": "o?"}
_TIME: Shape = dict.fromkeys(("goodput", "goodput_without_queue"), "n?")
_TIME |= {
    f"{name}_seconds": "n"
    for name in ("total", "steps", "queue", "start", "check", "hang", "repeated", "stop", "unknown")
}
_SHOW |= {"time": (_TIME,)}
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
_USAGE |= {"spare_nodes": "i"}
_USAGE |= {"node_names": ["s"], "ranks": "i", "gpus": "i", "gpu_type": "s?", "cpus": "i?", "memory": "n?"}
_USAGE |= dict.fromkeys(("has_default_memory", "has_default_cpus", "has_whole_nodes"), "b") | {"missing": "s?"}
_USAGE |= dict.fromkeys(("gpu_busy", "gpu_memory", "power", "cpu", "node_memory"), "a?")
_USAGE |= dict.fromkeys(("gpu_memory_total", "power_cap", "cpus_per_node", "memory_per_node"), "n?")
_SPREAD: Shape = {"kind": "s", "count": "i", "median": "n", "extreme": "n", "where": "s", "host": "s"}
_USAGE |= {
    "samples_per_second": "n?",
    "recovered": "s?",
    "time": (_TIME,),
    "measured?": "o",
    "spread?": [_SPREAD],
    "notes?": ["#note"],
}
_SETTING: Shape = {"key": "s", "value": "x", "text": "s", "origin": "s", "source": "s", "meaning?": "s"}
_LOGIN: Shape = {"name": "s", "host": "s", "open": "b", "prompts": "b?"}
_LOGIN |= dict.fromkeys(("mode", "node", "reason", "since"), "s?")
_CLUSTER: Shape = {"name": "s", "scheduler": "s", "origin": "s", "here": "b", "retired": "b"}
_LIMITS = {"name": "s", "scheduler": "s", "partitions": {"*": "o"}, "gpus": {"*": "o"}, "*": "x"}
_CHECKED: Shape = {"schema": "i", "name": "s", "compared": "i"}
_CHECKED["differences"] = [{"key": "s", "profile": "s", "origin": "s", "cluster": "s"}]
_PROCESS: Shape = {"pid": "i", "command": "s", "state": "s", "wait": "s", "method": "s?", "problems": ["s"]}
_PROCESS["threads"] = [{"name": "s", "frames": ["a"]}]
_STACK: Shape = {"rank": "i", "node": "i", "host": "s", "launch": "s?", "processes": [_PROCESS], "omitted": "i"}
_STACKS: Shape = {"schema": "i", "run": "s", "attempt": "i", "ranks": [_STACK], "groups": [["i"]]}
_STACKS["silent_nodes"] = ["i"]
_OPERATOR: Shape = {"name": "s", "calls": "i", "cpu_seconds": "n", "gpu_seconds": "n", "share": "n"}
_PROFILE: Shape = {"rank": "i", **dict.fromkeys(("state", "host", "message", "gpu", "trace", "memory"), "s?")}
_PROFILE |= {"steps": (["i"],), **dict.fromkeys(("seconds", "step_seconds", "wait_share", "gpu_idle_share"), "n?")}
_PROFILE |= {"operators": [_OPERATOR]}
_PLACE: Shape = {"step": "i", "rank": "i"}
_RESUMED: Shape = {"schema": "i", "exact": "b", "stops": ["i"], "seed": "i", "steps": "i", "ranks": "i", "values": "i"}
_RESUMED |= {"tolerance": "n", "left_out": ["s"], "differences": "i", "deterministic": "b?", "runs": {"*": "s"}}
_RESUMED |= {"first": ({**_PLACE, "name": "s?", "whole": "x", "stopped": "x"},), "other_batch": (_PLACE,)}
_RESUMED |= {"lost": [{**_PLACE, "name": "s", "kind": "s", "role": "s"}]}
_ITEM: Shape = {"source": "s", "to": "s", "unpack": "s", "bytes": "i?", "files": "i?"}
_STAGE: Shape = {"schema": "i", "experiment": "s", "cluster": "s", "nodes": "i", "items": [_ITEM], "bytes": "i?"}
_STAGE |= {"files": "i?", "local_disk": "s?", "data_transfer": "s", "seconds": "n?", "notes": ["s"]}
_STAGE |= dict.fromkeys(("disk_needs_bytes", "local_disk_size_bytes", "data_cache_bytes"), "i?")
_BROUGHT: Shape = {"node": "s", "item": "s", "origin": "s", "bytes": "i", "files": "i", "seconds": "n"}
_SUGGESTION: Shape = {"id": "s", "line": "i", "text": "s", "sentence": "s", "toml": "s", "command": "s"}
_SUGGESTION["edits"] = [{"line": "i", "last": "i", "text": "s", "is_part": "b", "instead": "s"}]
_IMPORT: Shape = {"schema": "i", "written": "b", "name": "s", "script": "s", "settings": "o", "notes": ["s"]}
_IMPORT |= {"suggestions": [_SUGGESTION], "toml": "s"}
_BUILT: Shape = {"schema": "i", "was_there": "b", "script": "s"}
_ENV: Shape = {"schema": "i", "environment": "#environment"}
_LAB: Shape = {"name": "s", "directory": "s", "is_up": "b", "temporary": "b", "gpus_per_node": "i", "gpu_type": "s?"}
_LAB |= {"accounting": "b", "daemons": {"*": "b"}, "nodes": {"*": "s"}, "environment": {"*": "s"}}

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
    "doctor": one_of({"schema": "i", "checks": ["#finding"], "run?": "s"}, _PLAN),
    "login": schema({"schema": "i", "clusters": [_LOGIN]}),
    "clusters show": schema({"schema": "i", "cluster": _LIMITS}),
    "clusters check": schema(_CHECKED),
    "stacks": schema(_STACKS),
    "tunnel": schema({"schema": "i", "address": "s", "url": "s?", "run": "s", "host": "s", "port": "i"}),
    "metrics": one_of({"schema": "i", "run": "s", "what": "s", "rows": ["#metrics"]}, "#metrics"),
    "profile": one_of({"schema": "i", "run": "s", "ranks": [_PROFILE]}, _PLAN),
    "bench": schema({"schema": "i", "benches": ["#bench"]}),
    **dict.fromkeys(("bench scaling", "bench continue", "bench show"), schema("#bench")),
    "check-resume": one_of(_RESUMED, _PLAN),
    "stage": one_of(_STAGE, {"schema": "i", "run": "s", "state": "s", "brought": [_BROUGHT]}, _PLAN),
    "init": one_of(
        {"schema": "i", "template": "s?", "files": ["s"], "written": "b"},
        {"schema": "i", "templates": [{"name": "s", "help": "s"}]},
        _IMPORT,
    ),
    "env show": schema(_ENV),
    "env build": one_of({**_BUILT, "environment": "#environment"}, {**_BUILT, "image": "s", "source": "s"}),
    "env check": schema({**_ENV, "found": {"python": "s", "prefix": "s", "torch": "s?"}}),
    "env clean": schema({"schema": "i", "removed": ["s"], "dry_run": "b"}),
    "track sync": schema({"schema": "i", "runs": [{"run": "s", "id": "s", "path": "s", "is_synced": "b"}]}),
    "lab status": schema({"schema": "i", "labs": [_LAB]}),
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
