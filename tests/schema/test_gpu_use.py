from __future__ import annotations

from serried.schema.endings import warnings_in


def event(host: str, *gpus: tuple[int, int, float]) -> dict[str, object]:
    found = [{"gpu": gpu, "processes": processes, "memory": int(used * 1e9)} for gpu, processes, used in gpus]
    return {"event": "gpus-in-use", "node": int(host[1:]), "host": host, "gpus": found}


def message(*events: dict[str, object]) -> str:
    (warning,) = warnings_in([{"event": "go"}, *events])
    assert warning.code == "gpus-in-use"
    return warning.message


def test_gpus_that_others_used_are_one_warning():
    assert message(event("n01", (1, 1, 31))) == (
        "other programs used GPU 1 on n01 when the ranks started: 1 process, 31.0 GB of GPU memory"
    )
    many = [event("n01", (0, 2, 31), (2, 0, 1)), *(event(f"n0{number}", (3, 1, 0)) for number in (2, 3))]
    assert message(*reversed(many)) == (
        "other programs used GPUs 0, 2 on n01 and 2 GPUs on other nodes when the ranks started: "
        "4 processes, 32.0 GB of GPU memory"
    )
    unknown_memory = event("n01", (0, 2, 0))
    assert message(unknown_memory) == "other programs used GPU 0 on n01 when the ranks started: 2 processes"
    assert warnings_in([{"event": "go"}]) == []
