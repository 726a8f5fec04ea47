"""The key of wandb, the reach of its server, and the variables of programs that call wandb themselves."""

from __future__ import annotations

import socket
import threading

import pytest

from serried.schema import tracking
from serried.schema.tracking import Tracking, find_key, is_reachable, wandb_variables

OF_RUN = Tracking(("wandb",), "digits", name="train-k3f9q2", id="k3f9q2", folder="/runs/k3f9q2/results/tracking")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_the_key_comes_from_the_first_place_that_has_one(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    environ = {"HOME": str(tmp_path)}
    assert find_key(environ, project) is None
    sources = [
        (tmp_path / "wandb_credentials.txt", "of-credentials\n"),
        (
            tmp_path / ".netrc",
            "machine example.org\n login a password b\nmachine api.wandb.ai\n  login user\n  password of-netrc\n",
        ),
        (project / ".env", "# WANDB_API_KEY=no\nOTHER=1\nexport WANDB_API_KEY='of-env'\n"),
    ]
    for path, text in sources:
        path.write_text(text)
        path.chmod(0o600)
        found = find_key(environ, project)
        expected = (text.split()[-1].removeprefix("WANDB_API_KEY=").strip("'"), str(path), False)
        assert (found.value, found.source, found.is_exposed) == expected
    assert find_key({**environ, "WANDB_API_KEY": "of-variable"}, project).source == "WANDB_API_KEY"
    assert find_key(environ).value == "of-netrc"
    assert find_key({**environ, "WANDB_BASE_URL": "https://wandb.example.org:8080"}).value == "of-credentials"


def test_a_file_that_others_may_read_exposes_the_key(tmp_path):
    (tmp_path / "wandb_credentials.txt").write_text("a-key")
    (tmp_path / "wandb_credentials.txt").chmod(0o644)
    assert find_key({"HOME": str(tmp_path)}).is_exposed


@pytest.mark.parametrize("text", ["", "\n", "machine", "machine api.wandb.ai password", "macdef x\n  y\n\xff"])
def test_a_file_without_a_key_is_not_a_source(tmp_path, text):
    (tmp_path / ".netrc").write_text(text)
    (tmp_path / "wandb_credentials.txt").mkdir()
    assert find_key({"HOME": str(tmp_path)}, tmp_path) is None


def test_a_server_is_reachable_if_it_accepts_a_connection(listener):
    assert is_reachable(listener, {})
    assert is_reachable("https://example.invalid", {"https_proxy": listener})
    assert not is_reachable(listener, {"HTTP_PROXY": "http://127.0.0.1:1"})
    assert is_reachable(listener, {"http_proxy": "127.0.0.1:1", "no_proxy": "example.org,127.0.0.1"})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.0.0.1:port", "nonsense", "https://", "http://\xff.x"]
)
def test_anything_else_is_not_reachable(url):
    assert not is_reachable(url, {})


def test_a_resolver_that_never_answers_costs_the_given_time(monkeypatch):
    is_over = threading.Event()

    def resolve(*_):
        is_over.wait()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", resolve)
    assert not is_reachable("https://api.wandb.ai", {}, 0.1)
    is_over.set()


def test_auto_is_online_with_a_key_and_a_server(listener, tmp_path):
    environ = {"HOME": str(tmp_path), "WANDB_BASE_URL": listener}
    assert tracking.wandb_mode("auto", environ) == "offline"
    assert tracking.wandb_mode("auto", {**environ, "WANDB_API_KEY": "k"}) == "online"
    assert tracking.wandb_mode("auto", {**environ, "WANDB_API_KEY": "k", "WANDB_BASE_URL": "http://127.0.0.1:1"}) == (
        "offline"
    )
    expected = ["online", "offline", "disabled"]
    assert [tracking.wandb_mode(mode, environ) for mode in ("online", "offline", "off")] == expected


def test_variables_identify_the_run_for_every_attempt():
    assert wandb_variables(OF_RUN, 0, "offline") == {
        "WANDB_MODE": "offline",
        "WANDB_DIR": "/runs/k3f9q2/results/tracking",
        "WANDB_PROJECT": "digits",
        "WANDB_RUN_ID": "k3f9q2",
        "WANDB_NAME": "train-k3f9q2",
        "WANDB_RESUME": "allow",
    }
    of_each = wandb_variables(OF_RUN._replace(every_process=True), 3, "offline")
    expected = ("k3f9q2-r3", "train-k3f9q2-r3", "k3f9q2")
    assert (of_each["WANDB_RUN_ID"], of_each["WANDB_NAME"], of_each["WANDB_RUN_GROUP"]) == expected
    assert "WANDB_RUN_ID" not in wandb_variables(OF_RUN, None, "offline")


def test_only_rank_0_is_a_run_unless_every_process_is_and_none_when_off():
    assert [OF_RUN.has_run(rank) for rank in (0, 1)] == [True, False]
    assert OF_RUN._replace(every_process=True).has_run(1)
    assert not OF_RUN._replace(mode="off").has_run(0)
    assert not OF_RUN._replace(sinks=()).has_run(0)


def test_settings_reach_the_ranks_as_they_were():
    assert Tracking.decode(OF_RUN.encode()) == OF_RUN
    assert Tracking.decode('{"sinks": ["wandb"], "later": 1}') == Tracking(("wandb",))
    for text in ("[]", "{", "1"):
        with pytest.raises(ValueError):  # noqa: PT011 - json.loads raises it
            Tracking.decode(text)
