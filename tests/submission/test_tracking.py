"""`[track]` at submit: the key of wandb, missing servers and modules, and the plan."""

from __future__ import annotations

import json

import pytest

from serried.base.errors import ConfigError, UsageError
from serried.schema.plan import Plan, Track
from serried.submission.prepare import hidden_failures
from serried.submission.snapshot import Revision
from serried.sweeps.definition import SweepDefinition
from serried.views.plan_lines import plan_lines
from tables import for_each

VALUE = "0123456789-secret"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def track(project, ask):
    """`track(TOML)` prepares an experiment with this content of `[track]`."""

    def make(text: str, **options):
        (project / "serried.toml").write_text(
            f'[experiments.train]\ncommand = "python train.py"\n[experiments.train.track]\n{text}\n'
        )
        return ask(command=None, **options)

    return make


def test_the_file_decides_the_plan_and_the_command_line_its_mode(track):
    plan = track('sinks = ["tensorboard", "wandb"]\ngroup = "g"', overrides={"track.mode": "offline"}).plan
    assert plan.track == Track(("tensorboard", "wandb"), project="project", group="g", mode="offline")
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).track == plan.track
    assert dict(plan_lines(plan, None, Revision()))["track"] == "tensorboard and wandb offline, project `project`"
    assert track('project = "p"').plan.track is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('sinks = ["wandbb"]', "must be of `tensorboard`, `wandb`, `mlflow`, not `wandbb`"),
        ('mode = "on"', "must be `auto`, `online`, `offline` or `off`, not `on`"),
        ("every_process = 2", "must be true or false, not `2`"),
    ],
)
def test_a_wrong_value_is_refused(track, text, message):
    with pytest.raises(ConfigError, match=message):
        track(text)


def test_a_key_from_a_file_is_a_secret_of_the_job(track, home, project):
    (home / "wandb_credentials.txt").write_text(VALUE)
    (home / "wandb_credentials.txt").chmod(0o600)
    prepared = track('sinks = ["wandb"]')
    assert prepared.environment["WANDB_API_KEY"] == VALUE
    assert prepared.plan.environment.secrets == ("WANDB_API_KEY",)
    assert (prepared.notes, prepared.warnings) == ((), ())
    (project / ".env").write_text("WANDB_API_KEY=of-the-project\n")
    (project / ".env").chmod(0o600)
    assert track('sinks = ["wandb"]').environment["WANDB_API_KEY"] == "of-the-project"
    assert "WANDB_API_KEY" not in track('sinks = ["tensorboard"]').environment


def test_its_value_is_in_no_file_and_on_no_command_line(track, home, capsys):
    (home / "wandb_credentials.txt").write_text(VALUE)
    (home / "wandb_credentials.txt").chmod(0o644)
    prepared = track('sinks = ["wandb"]')
    assert prepared.warnings == (f"other users may read the key of wandb: `chmod 600 {home}/wandb_credentials.txt`",)
    shown = (json.dumps(prepared.plan.to_json()), prepared.script, str(prepared.handover.argv), capsys.readouterr())
    assert VALUE not in str(shown)


def test_without_a_key_auto_means_offline_and_online_is_refused(track):
    prepared = track('sinks = ["wandb"]')
    assert prepared.notes == ("wandb has no key here, so the run logs offline; `serried track sync` uploads it",)
    assert prepared.plan.environment.secrets == ()
    with pytest.raises(UsageError, match=r"`track.mode` is `online`, but wandb has no key") as refused:
        track('sinks = ["wandb"]\nmode = "online"')
    assert "run `wandb login`, or pass `--track offline`" in refused.value.hint
    for mode in ("offline", "off"):
        assert track('sinks = ["wandb"]', overrides={"track.mode": mode}).notes == ()


def test_mlflow_online_needs_the_address_of_its_server(track, monkeypatch):
    with pytest.raises(UsageError, match="`MLFLOW_TRACKING_URI` is not set"):
        track('sinks = ["mlflow"]\nmode = "online"')
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    assert track('sinks = ["mlflow"]\nmode = "online"').plan.track.mode == "online"


def test_a_module_that_the_ranks_lack_is_a_warning(track, tmp_path):
    bare = tmp_path / "bare"
    (bare / "lib" / "python3.11" / "site-packages" / "wandb").mkdir(parents=True)
    (bare / "bin").mkdir()
    (bare / "bin" / "python").symlink_to("/usr/bin/python3")
    (bare / "bin" / "activate").touch()
    (bare / "pyvenv.cfg").write_text("home = /usr/bin\n")
    options = {"overrides": {"environment.venv": str(bare), "environment.check": "false", "track.mode": "offline"}}
    assert track('sinks = ["wandb", "tensorboard"]', **options).warnings == (
        "`tensorboard` is not installed for the ranks, so this tracker is left out: `pip install tensorboard`",
    )


def agent_of(sweep="ada/digits/x1y2z3"):
    said = "`wandb agent` exits with status 0 also if its trial fails, and the run is COMPLETED then"
    return [f"{said}: `serried sweep {sweep}` ends with the status of the trial"]


@for_each(
    "text, warnings",
    [
        ("wandb agent --count 1 ada/digits/x1y2z3", agent_of()),
        ("/opt/venv/bin/wandb agent 'ada/my digits/x1y2z3' --count 1", agent_of("ada/my digits/x1y2z3")),
        ("WANDB_MODE=online python3 -u -m wandb agent ada/digits/x1y2z3", agent_of()),
        ("srun uv run wandb agent --count=1 ada/digits/x1y2z3 && echo done/with/it", agent_of()),
        ("bash -c 'cd code && exec wandb agent ada/digits/x1y2z3'", agent_of()),
        ("cd code\nwandb agent --count 1 $SWEEP\n", agent_of("ENTITY/PROJECT/ID")),
        (
            "#!/bin/bash\n#SBATCH -t 1\nwandb agent \\\n  --count 1 \\\n  ada/digits/x1y2z3  # one/trial/each\n",
            agent_of(),
        ),
        ("wandb agent x1y2z3", agent_of("ENTITY/PROJECT/ID")),
        ("# wandb agent ada/digits/x1y2z3\npython train.py # or wandb agent ada/digits/x1y2z3\n", []),
        ("echo 'start: wandb agent ada/digits/x1y2z3'", []),
        ('ID=$(wandb sweep s.yaml 2>&1 | grep -o "wandb agent .*")', []),
        ("python -m serried.train.tracking.wandb_agent ada/digits/x1y2z3", []),
        ("wandb launch-agent -q queue; wandb sync runs; my-wandb agent x", []),
    ],
)
def test_an_agent_of_wandb_that_hides_a_failed_trial_is_warned_of(text, warnings):
    assert list(hidden_failures(text)) == warnings


def test_a_command_each_task_and_a_job_script_are_read_for_such_an_agent(ask, project):
    def warned(*command, **options):
        return [text for text in ask(command=command, **options).warnings if "wandb agent" in text]

    assert warned("wandb", "agent", "--count", "1", "ada/digits/x1y2z3") == agent_of()
    assert warned("python", "-m", "wandb", "agent", "ada/digits/x1y2z3") == agent_of()
    assert warned("python", "train.py") == []
    (project / "job.sh").write_text("#!/bin/bash\nsrun wandb agent --count 1 ada/digits/x1y2z3\n")
    assert warned("job.sh", is_script=True) == agent_of()


SWEEP = SweepDefinition({}, id="ada/digits/x1y2z3", run_cap=3)


def test_a_sweep_at_wandb_gets_the_key_and_one_agent_for_each_task(ask, home, project):
    (home / "wandb_credentials.txt").write_text(VALUE)
    (home / "wandb_credentials.txt").chmod(0o600)
    prepared = ask(command=None, sweep=SWEEP)
    plan = prepared.plan
    assert plan.command == ("python", "-m", "serried.train.tracking.wandb_agent", "ada/digits/x1y2z3")
    assert (plan.launch.kind, plan.allocation.ranks, plan.array.indices) == ("single", 1, (0, 1, 2))
    assert (plan.name, plan.experiment) == ("digits", "digits")
    assert (plan.environment.secrets, prepared.environment["WANDB_API_KEY"]) == (("WANDB_API_KEY",), VALUE)
    assert VALUE not in str((json.dumps(plan.to_json()), prepared.script, str(prepared.handover.argv)))
    (project / "serried.toml").write_text(
        '[experiments.train]\ncommand = "python train.py"\ntrack = { sinks = ["wandb"] }\n'
    )
    assert ask(command=None, experiment="train", sweep=SWEEP).plan.track.mode == "online"
    with pytest.raises(UsageError, match="the trials of a sweep at W&B are online"):
        ask(command=None, experiment="train", sweep=SWEEP, overrides={"track.mode": "off"})


def test_a_sweep_at_wandb_needs_a_key_and_is_one_process(ask, home):
    with pytest.raises(UsageError, match="a sweep at W&B needs a key") as refused:
        ask(command=None, sweep=SWEEP)
    assert "run `wandb login`" in refused.value.hint
    (home / "wandb_credentials.txt").write_text(VALUE)
    with pytest.raises(UsageError, match=r'`launch.kind = "single"` is one process, and 2 ranks were requested'):
        ask(command=None, sweep=SWEEP, overrides={"resources.ranks": 2})
    with pytest.raises(UsageError, match="the agent of W&B starts the command of `ada/digits/x1y2z3`"):
        ask(command=("python", "train.py"), sweep=SWEEP)
