from __future__ import annotations

from serried.schema import endings


def event(host: str, *gpus: tuple[int, int, float]) -> dict[str, object]:
    found = [{"gpu": gpu, "processes": processes, "memory": int(used * 1e9)} for gpu, processes, used in gpus]
    return {"event": "gpus-in-use", "node": int(host[1:]), "host": host, "gpus": found}


def test_gpus_of_one_node_are_named():
    assert endings.gpu_warnings([{"event": "go"}, event("n01", (1, 1, 31))]) == [
        {
            "code": "gpus-in-use",
            "message": "other programs used GPU 1 on n01 when the ranks started: 1 process, 31.0 GB of GPU memory",
        }
    ]


def test_gpus_of_many_nodes_are_one_warning():
    events = [event("n01", (0, 2, 31), (2, 0, 1)), *(event(f"n0{number}", (3, 1, 0)) for number in (2, 3))]
    (warning,) = endings.gpu_warnings(reversed(events))
    assert warning["message"] == (
        "other programs used GPUs 0, 2 on n01 and 2 GPUs on other nodes when the ranks started: "
        "4 processes, 32.0 GB of GPU memory"
    )


def test_memory_that_is_not_known_is_left_out():
    (warning,) = endings.gpu_warnings([event("n01", (0, 2, 0))])
    assert warning["message"] == "other programs used GPU 0 on n01 when the ranks started: 2 processes"


def test_an_attempt_with_free_gpus_has_no_warning():
    assert endings.gpu_warnings([{"event": "go"}]) == []
