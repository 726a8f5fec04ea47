"""Reads back what trackers have written."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

BLOCK, HEADER = 32 << 10, 7


def events(folder: Path):
    """The scalars as TensorBoard serves them: {name: [(step, value)]}."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.util.tensor_util import make_ndarray

    reader = EventMultiplexer(tensor_size_guidance={"scalars": 0}).AddRun(str(folder), "own")
    reader.Reload()
    tags = reader.PluginRunToTagToContent("scalars")["own"]
    return {
        name: [(event.step, make_ndarray(event.tensor_proto).item()) for event in reader.Tensors("own", name)]
        for name in tags
    }


def wandb_files(folder: Path):
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def wandb_records(path: Path):
    """The records of a run of wandb: blocks of 32 KiB, as LevelDB writes its log, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + HEADER])
        record += content[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""


def wandb_history(path: Path):
    """The logged values without those of wandb and of Serried itself: [{"_step": 1, "loss": 0.5}]."""
    rows = []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {}
        for item in record.history.item:
            name = item.key or ".".join(item.nested_key)
            if name == "_step" or not name.startswith(("_", "serried/")):
                row[name] = json.loads(item.value_json)
        if record.history.step.num:
            row["_step"] = record.history.step.num
        if len(row) > 1:
            rows.append(row)
    return rows


def wandb_run(path: Path):
    """The record of the run itself: id, name, project, group, configuration."""
    return next(record.run for record in wandb_records(path) if record.WhichOneof("record_type") == "run")


def wandb_summary(path: Path):
    """The final values, by their names."""
    records = [record.summary for record in wandb_records(path) if record.WhichOneof("record_type") == "summary"]
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json) for one in records for item in one.update
    }


def wandb_artifacts(path: Path, kind: str):
    """The name and the files of each artifact of a type."""
    records = [record.artifact for record in wandb_records(path) if record.WhichOneof("record_type") == "artifact"]
    return [(one.name, [file.path for file in one.manifest.contents]) for one in records if one.type == kind]


def mlflow_metrics(folder: Path):
    """The metrics of each run of a folder of MLflow, by the run's name."""
    runs = {}
    for meta in folder.glob("*/*/meta.yaml"):
        name = (meta.parent / "tags" / "mlflow.runName").read_text()
        metrics = {}
        for path in sorted((meta.parent / "metrics").glob("*")):
            if path.is_file():
                lines = [line.split() for line in path.read_text().splitlines()]
                metrics[path.name] = [(int(step), float(value)) for _, value, step in lines]
        runs[name] = metrics
    return runs


def is_nan(value) -> bool:
    return math.isnan(float(value))
