"""What a bench asks of `run.wrap`: gradients that stay on each rank, and DataParallel."""

from __future__ import annotations

import json

import pytest
import torch
import train_ranks

import serried.train as st
from serried.train import parallel

pytestmark = pytest.mark.torch

SCRIPT = """\
import torch
import serried.train as st
with st.session(metrics_file=f"PLACE/metrics-{st.identity().rank}.jsonl") as run:
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1)))
    model(torch.full((4, 1), run.rank + 1.0)).sum().backward()
    with model.no_sync():  # as a program that accumulates gradients
        model(torch.tensor([[1.0], [2.0 + run.rank]])).square().sum().backward()
    model.zero_grad()
    model(torch.tensor([[1.0], [5.0 + run.rank]])).square().mul(run.rank + 1).sum().backward()
    gradient = model.module[1].weight.grad.item()
    print(round(gradient, 3), round(model.module[1].running_mean.item(), 3) != 0)
    for step in range(2):
        run.log(gradient=gradient)
"""


def test_without_synchronisation_each_rank_keeps_its_gradients_and_the_file_of_metrics_says_so(tmp_path):
    outputs = {}
    for way in ("", "no-sync"):
        place = tmp_path / (way or "sync")
        place.mkdir()
        script = SCRIPT.replace("PLACE", str(place))
        ended = train_ranks.run(script, 2, SERRIED_PARALLEL=way)
        assert [each.status for each in ended] == [0, 0], ended[0].errors
        outputs[way] = [each.output.split()[0] for each in ended]
        lines = [json.loads(line) for line in (place / "metrics-0.jsonl").read_text().splitlines()]
        assert {line.get("serried/without_sync") for line in lines if "serried/steps_per_second" in line} == {
            1.0 if way else None
        }
    assert outputs[""][0] == outputs[""][1]
    assert outputs["no-sync"][0] != outputs["no-sync"][1]


def test_a_bench_selects_dataparallel_only_where_the_script_selects_nothing(monkeypatch):
    monkeypatch.setenv("SERRIED_PARALLEL", "dp")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    model, who = torch.nn.Linear(1, 1), st.identity()
    assert type(parallel.wrap(model, who, torch.device("cpu"))) is torch.nn.DataParallel
    assert parallel.wrap(model, who, torch.device("cpu"), "none") is model
