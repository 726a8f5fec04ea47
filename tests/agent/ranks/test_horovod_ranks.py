"""Ranks that agents start for Horovod and TensorFlow: what they are told, and whose failure it was."""

from __future__ import annotations

import json

from serried.plan import Launch
from serried.protocol.launcher_env import elastic_id

STUMBLES = "echo 'horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.'; exit 1"


def test_ranks_are_told_what_horovodrun_would_tell_them_and_their_store_answers(start, marked_processes):
    names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME CONTROLLER CPU_OPERATIONS"
    ask = "exec 3<>/dev/tcp/$HOROVOD_GLOO_RENDEZVOUS_ADDR/$HOROVOD_GLOO_RENDEZVOUS_PORT"
    run = start(
        f"for name in {names}; do name=HOROVOD_$name; echo -n ${{!name}}' '; done; echo $RANK $TORCHELASTIC_RUN_ID; "
        f"{ask}; printf 'GET /global/0 HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3; "
        "ls /sys/class/net | grep -cx $HOROVOD_GLOO_IFACE",
        nodes=2,
        launch=Launch("horovod"),
    )
    assert run.wait() == 0, run.log
    told = [run.output(rank, rank // 2).splitlines() for rank in range(4)]
    assert told == [
        [
            f"{r} 4 {r % 2} 2 {r // 2} 2 node-{r // 2} gloo gloo {r} {elastic_id(run.plan.run)}",
            "HTTP/1.0 404 Not Found",
            "1",
        ]
        for r in range(4)
    ]
    assert marked_processes(run.mark) == []


def test_each_rank_of_tensorflow_has_a_free_port_that_all_know(start):
    run = start("echo $TF_CONFIG", nodes=2, launch=Launch("agent", tf_config=True))
    assert run.wait() == 0, run.log
    told = [json.loads(run.output(rank, rank // 2)) for rank in range(4)]
    assert [each["task"] for each in told] == [{"type": "worker", "index": rank} for rank in range(4)]
    workers = told[0]["cluster"]["worker"]
    assert all(each["cluster"] == {"worker": workers} for each in told)
    assert len(set(workers)) == 4
    assert all(worker.rpartition(":")[2].isdigit() for worker in workers)


def test_a_kept_port_can_be_listened_at_by_its_rank_alone(start):
    """As gRPC does, with SO_REUSEADDR; a program that asks for just any port never gets it."""
    listens = """
import json, os, socket
here = json.loads(os.environ["TF_CONFIG"])
host, port = here["cluster"]["worker"][here["task"]["index"]].split(":")
socket.create_server(("", int(port)))
print("listens")
"""
    run = start(["python3", "-c", listens], launch=Launch("agent", tf_config=True))
    assert run.wait() == 0, run.log
    assert [run.output(rank) for rank in (0, 1)] == ["listens\n"] * 2


def test_a_rank_that_stumbled_over_another_is_not_the_one_that_failed(start):
    logs = " ".join(f"node-{rank // 2}/rank-{rank}.log" for rank in range(3))
    others = f"cd $SERRIED_RUN_DIR/attempts/1; grep -s Internal {logs} | wc -l"
    waits = f"until test $({others}) = 3; do sleep 0.1; done; echo raised; exit 9"
    seconds = {"node.STUMBLED_SECONDS": 120.0}
    run = start(f"test $RANK = 3 || {{ {STUMBLES}; }}; {waits}", nodes=2, seconds=seconds)
    assert run.wait() == 9, run.log
    assert run.ending == ("FAILED", 9, "exit", "rank 3 on fake2 exited with status 9")
    assert run.exit["first_failure"]["tail"] == ["raised"]
