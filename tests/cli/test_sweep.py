"""`serried sweep show`: the trials of a sweep, ranked, over all its runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from building import a_failure
from command_line import here
from house import ROOT
from serried.base.errors import Risk, install_hint
from serried.base.files import make_directory, write_json
from serried.records.record import Record
from serried.schema.plan import ReportedMetric, Sweep
from serried.submission import prepare
from serried.sweeps import wandb_service
from serried.views import console

SWEEP = Sweep("k3f9q2", ("lr", "seed"), metric="val_acc", goal="maximize", seeds=3)
VALUES = {0: 0.9799, 1: 0.9812, 3: 0.9571, 4: 0.9568, 5: 0.9542}


def a_trial(run, task, value, *, seconds=361, state="COMPLETED", **changes):
    log = run.where.task(task).attempt(1).metrics(0, 0)
    make_directory(log.parent)
    values = [] if value is None else [value / 2, value]
    rows = [
        {"t": 1.0, "step": step, "val_acc": _spelled(each), "loss": _spelled(1 - each)}
        for step, each in enumerate(values)
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    run.ending(state, task=task, seconds=seconds, **changes)


def _spelled(value):
    """As `run.log` writes numbers that JSON lacks."""
    return value if math.isfinite(value) else str(value)


@pytest.fixture
def a_sweep(make):
    """A sweep of two learning rates and three seeds; trial 2 failed."""
    run = make(name="train", indices=range(6), sweep=SWEEP)
    write_json(run.where.trials, [{"lr": lr, "seed": seed} for lr in (0.1, 0.01) for seed in range(3)])
    for task, value in VALUES.items():
        a_trial(run, task, value, seconds=361 + task)
    failure = a_failure(tail=("RuntimeError",))
    a_trial(
        run,
        2,
        None,
        seconds=31,
        state="FAILED",
        exit_code=1,
        first_failure=failure,
        message="rank 0 on cn12 exited with status 1",
    )
    return run


@pytest.mark.usefixtures("a_sweep")
def test_the_table_is_that_of_the_page(serried):
    done = serried("sweep", "show", "k3f9q2")
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    shown = page.partition("$ serried sweep show k3f9q2\n")[2].partition("\n    $ ")[0]
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    assert done.err.splitlines()[0] == lines[0]
    assert done.out.splitlines() == lines[1:]


@pytest.mark.usefixtures("a_sweep")
def test_the_best_parameters_have_the_best_mean_and_no_seed(serried):
    assert serried("sweep", "show", "k3f9q2", "--best").out == "--lr=0.1\n"
    assert json.loads(serried("sweep", "show", "k3f9q2", "--best", "--json").out) == {"lr": 0.1}


def test_the_metric_of_a_printing_program_may_be_named_again(make, serried):
    run = make(indices=range(2), sweep=SWEEP._replace(seeds=1, source="stdout:val_acc=(.*)"))
    write_json(run.where.trials, [{"lr": 0.1}, {"lr": 0.2}])
    for task, value in ((0, 0.5), (1, 0.25)):
        a_trial(run, task, None)
        run.where.task(task).attempt(1).rank_log(0, 0).write_text(f"val_acc={value}\n", encoding="utf-8")
    for metric, best in (("val_acc:max", 0.1), ("val_acc:min", 0.2)):
        shown = json.loads(serried("sweep", "show", "k3f9q2", "--metric", metric, "--best", "--json").out)
        assert shown == {"lr": best}


def test_another_metric_that_the_experiment_or_the_sweep_prints_orders_the_trials(make, serried):
    groups = r"stdout:(?P<val_acc>\S+) (?P<loss>\S+)"
    for number, source, reported in (
        (2, "", ReportedMetric(source=groups)),
        (3, groups, None),
        (4, "", ReportedMetric("loss", r"stdout:\S+ (\S+)")),
    ):
        first = f"k3f9q{number}"
        sweep = SWEEP._replace(first=first, seeds=1, source=source)
        run = make(first, indices=range(2), sweep=sweep, metric=reported)
        write_json(run.where.trials, [{"lr": 0.1}, {"lr": 0.2}])
        for task in (0, 1):
            a_trial(run, task, None)
            run.where.task(task).attempt(1).rank_log(0, 0).write_text(f"{task} {2 - task}\n", encoding="utf-8")
        shown = json.loads(serried("sweep", "show", first, "--metric", "loss:min", "--json").out)
        assert [(trial["trial"], trial["value"]) for trial in shown["trials"]] == [(1, 1.0), (0, 2.0)]


@pytest.mark.usefixtures("a_sweep")
def test_another_metric_reorders_the_trials(serried):
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--metric", "loss:max", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [5, 4, 3, 0, 1, 2]
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--metric", "loss:min", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [1, 0, 3, 4, 5, 2]
    assert serried("sweep", "show", "k3f9q2", "--metric", "val_acc").code == 0
    refused = serried("sweep", "show", "k3f9q2", "--metric", "loss")
    assert (refused.code, "`--metric loss` does not say which values are better" in refused.err) == (2, True)


@pytest.mark.usefixtures("a_sweep")
def test_one_trial_is_no_sweep(serried):
    hints = {
        ("stop", "-y"): "serried stop k3f9q2/2",
        ("retry",): "serried rerun k3f9q2/2",
        ("add", "--count", "1"): "serried rerun k3f9q2/2",
    }
    for (command, *options), hint in hints.items():
        done = serried("sweep", command, "k3f9q2/2", *options)
        assert (done.code, done.err) == (2, f"error: `k3f9q2/2` is one trial of a sweep\n\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--grid lr=1,2 --grid lr=3", "`lr` is given twice\n\nhint: list all its values in one"),
        ("--grid seed=7,8 --seeds 3", "`seeds` and the parameter `seed` exclude each other"),
        ("--random lr=1,2 --count 2 --method grid", "`--random lr` and `--method grid` exclude each other"),
        ("--grid lr=1,2 --method random", "`--method random` draws nothing: `--grid` tries all of its values"),
        ("--grid lr=1 --metric-from stdout:a(.)", "`--metric-from` needs the name of the metric"),
        (
            "--grid lr=1 --metric a:max --metric-from a(.)",
            "`--metric-from a(.)` must be `stdout:REGEX` or `file:PATH:KEY`",
        ),
        ("--grid lr=1 --metric a:max --metric-from stdout:(", "`--metric-from stdout:(` is not a regular expression"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message, serried):
    done = serried("sweep", *options.split(), "--", "true")
    assert (done.code, done.err.startswith(f"error: {message}")) == (2, True), done.err


def test_a_metric_that_no_trial_reports_is_named(make, serried):
    for number, source, what in (
        (2, "", "logged `val_acc`"),
        (3, "stdout:acc=(.*)", "reported `val_acc` by `stdout:acc=(.*)`"),
    ):
        run = make(f"k3f9q{number}", indices=range(1), sweep=SWEEP._replace(first=f"k3f9q{number}", source=source))
        write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
        a_trial(run, 0, None)
        done = serried("sweep", "show", f"k3f9q{number}")
        assert f"note: no trial has {what}\n" in done.err


@pytest.mark.usefixtures("a_sweep")
def test_csv_has_a_line_for_each_trial(serried):
    lines = serried("sweep", "show", "k3f9q2", "--csv").out.splitlines()
    assert lines[:2] == ["trial,state,val_acc,seconds,lr,seed", "1,COMPLETED,0.9812,362,0.1,1"]
    assert len(lines) == 7
    assert serried("sweep", "show", "k3f9q2", "--csv", "--json").err.startswith("error: `--csv` excludes `--json`")


def test_a_value_that_is_not_a_number_counts_as_missing(a_sweep, serried):
    a_trial(a_sweep, 1, math.nan)
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [0, 3, 4, 5, 1, 2]
    assert shown["trials"][4]["value"] == "nan"
    assert shown["groups"][0]["mean"] == 0.9799


def test_a_later_run_of_the_sweep_replaces_the_trials_that_it_repeats(a_sweep, make, serried):
    again = make("p4m7wd", name="train", indices=[2], sweep=SWEEP)
    write_json(again.where.trials, [{"lr": 0.1, "seed": 2}])
    a_trial(again, 2, 0.99)
    shown = json.loads(serried("sweep", "show", "p4m7wd", "--json").out)
    assert shown["runs"] == [a_sweep.plan.run, "p4m7wd"]
    assert shown["trials"][0]["id"] == "p4m7wd/2"
    assert len(shown["trials"]) == 6


def test_a_sweep_without_a_metric_or_a_completed_trial_has_no_best(make, serried):
    run = make(indices=range(1), sweep=SWEEP)
    write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
    a_trial(run, 0, 0.5, state="FAILED", exit_code=1)
    done = serried("sweep", "show", "k3f9q2", "--best")
    assert (done.code, done.out) == (2, "")
    assert "no completed trial of sweep `k3f9q2` has logged `val_acc`" in done.err
    assert "--best" not in serried("sweep", "show", "k3f9q2").err
    assert "  serried sweep show k3f9q2       the trials, the best first\n" in serried("show", "k3f9q2").err
    other = make("m2n3p4", indices=range(1), sweep=SWEEP._replace(first="m2n3p4", metric=""))
    write_json(other.where.trials, [{"lr": 0.1, "seed": 0}])
    a_trial(other, 0, 0.5)
    assert serried("sweep", "show", "m2n3p4", "--best").code == 2
    head = serried("sweep", "show", "m2n3p4").out.splitlines()[0]
    assert head.split() == ["TRIAL", "LR", "SEED", "STATE", "TIME", "NOTE"]


def test_a_sweep_at_wandb_shows_its_page_and_what_its_agents_started(make, serried):
    run = make(indices=range(2), sweep=Sweep("k3f9q2", (), service="ada/digits/x1y2z3"))
    write_json(run.where.trials, [{}, {}])
    a_trial(run, 0, 0.5, state="FAILED", exit_code=1)
    write_json(run.where.task(0).trial, {"parameters": {"lr": 0.1}, "command": ["true"], "variables": {}})
    done = serried("sweep", "show", "k3f9q2")
    assert "https://wandb.ai/ada/digits/sweeps/x1y2z3" in done.err
    assert [line.split()[:3] for line in done.out.splitlines()[:2]] == [["TRIAL", "LR", "STATE"], ["1", "-", "UNKNOWN"]]
    assert "retry" not in done.err
    refused = serried("sweep", "retry", "k3f9q2")
    assert (refused.code, "W&B gives each trial to one agent" in refused.err) == (2, True)


def test_what_is_at_wandb_cannot_be_given_here(serried):
    for options, message in (
        ("", "a sweep at W&B needs a number of trials"),
        ("--count 3 --grid lr=1,2", "`ada/digits/x1y2z3` has its parameters at W&B"),
        ("--count 3 --seeds 2", "`ada/digits/x1y2z3` has its parameters at W&B"),
    ):
        done = serried("sweep", "ada/digits/x1y2z3", *options.split())
        assert (done.code, message in done.err) == (2, True)


def test_other_runs_and_lost_parameters_are_errors(make, serried):
    make()
    make("p4m7wd", indices=range(2), sweep=SWEEP._replace(first="p4m7wd"))
    make("m2n3p4", indices=range(2), sweep=SWEEP._replace(first="m2n3p4", seeds=1))
    write_json(Record.load("m2n3p4").where.trials, [{"lr": 0.1}, {}])
    for words, code, message in (
        ("sweep show k3f9q2", 2, "is not a sweep"),
        ("sweep show p4m7wd", 1, "`trials.json` of run `p4m7wd` cannot be read"),
        ("submit --from-sweep m2n3p4/1 --dry-run -- true", 2, "trial 1 of sweep `m2n3p4` has no parameters yet"),
    ):
        done = serried(*words.split())
        assert (done.code, message in done.err.splitlines()[0]) == (code, True)


@pytest.mark.usefixtures("a_sweep")
def test_the_sweep_is_drawn_beside_its_table(serried, tmp_path):
    done = serried("sweep", "show", "k3f9q2", "--plot", str(tmp_path / "sweep.png"))
    written = f"wrote {tmp_path}/sweep-history.png, {tmp_path}/sweep-parallel.png"
    assert (done.code, written in " ".join(done.err.split())) == (0, True)
    assert done.out == serried("sweep", "show", "k3f9q2").out
    assert (tmp_path / "sweep-history.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sweep.jpeg", "must end in .png, .svg or .pdf"),
        ("sweep", "must end in .png, .svg or .pdf"),
        ("folder.png", "it is a directory"),
        ("missing/sweep.png", "/missing` is not a directory"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_any_work(name, message, serried, tmp_path):
    (tmp_path / "folder.png").mkdir()
    done = serried("sweep", "show", "no-such-run", "--plot", str(tmp_path / name))
    assert (done.code, done.out, message in done.err) == (2, "", True)


def test_a_picture_needs_matplotlib_and_a_metric(make, serried, monkeypatch, tmp_path):
    run = make(indices=range(1), sweep=SWEEP._replace(metric=""))
    write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
    show = ("sweep", "show", "k3f9q2", "--plot", str(tmp_path / "sweep.png"))
    done = serried(*show)
    assert (done.code, "sweep `k3f9q2` has no metric" in done.err) == (2, True)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    done = serried(*show)
    refusal = f"error: `--plot` needs matplotlib, which is not installed\n\nhint: {install_hint('sweeps')}\n"
    assert (done.code, done.err) == (2, refusal)


def test_importance_follows_the_table_once_there_are_enough_trials(make, serried):
    run = make(indices=range(24), sweep=SWEEP._replace(seeds=1))
    write_json(run.where.trials, [{"lr": 0.1 * (1 + task % 2), "kind": "adam"} for task in range(24)])
    for task in range(24):
        a_trial(run, task, 0.5 + 0.1 * (task % 2))
    assert "importance: lr 1.00\n" in serried("sweep", "show", "k3f9q2").err
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--json").out)
    assert shown["importance"] == {"lr": 1.0}


def test_a_trial_that_the_search_ended_says_so(make, serried):
    run = make(name="train", indices=range(2), sweep=SWEEP._replace(seeds=1))
    write_json(run.where.trials, [{"lr": 0.1}, {"lr": 0.2}])
    a_trial(run, 0, 0.9)
    a_trial(run, 1, 0.1, cause="pruned", message="ended early, after 1 value of the metric")
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--json").out)
    assert [(trial["trial"], trial["state"]) for trial in shown["trials"]] == [(0, "COMPLETED"), (1, "PRUNED")]
    assert "the sweep ended it: others were better after as many values of the metric" in serried("why", "k3f9q2/1").out


def test_the_trials_of_a_deleted_run_stay_in_the_table_without_their_parameters(a_sweep, make, serried):
    serried("ps")  # which records the ends of tasks
    shutil.rmtree(a_sweep.where.path)
    later = make("m4p7r8", name="train", indices=[6], sweep=SWEEP)
    write_json(later.where.trials, [{"lr": 0.5, "seed": 0}])
    a_trial(later, 6, 0.9)
    trials = {trial["trial"]: trial for trial in json.loads(serried("sweep", "show", "m4p7r8", "--json").out)["trials"]}
    assert (trials[6]["parameters"], trials[6]["value"]) == ({"lr": 0.5, "seed": 0}, 0.9)
    assert (len(trials), trials[0]["parameters"], trials[0]["value"]) == (7, {}, None)
    assert serried("sweep", "show", "m4p7r8", "--best").out == "--lr=0.5\n"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("sho", "k3f9q2"), "`sho` is followed by `k3f9q2`", "did you mean `serried sweep show`?"),
        (("retyr", "k3f9q2", "-y"), "`retyr` is followed by `k3f9q2`", "did you mean `serried sweep retry`?"),
        (("shw",), "`shw` is neither a sweep nor a file", "did you mean `serried sweep show`?"),
        (
            ("python", "train.py", "--lr", "1"),
            "`python` begins a command, and an experiment is one word",
            "serried sweep submit -- python train.py --lr 1",
        ),
    ],
)
def test_a_mistyped_subcommand_is_recognised(words, message, hint, serried):
    done = serried("sweep", *words)
    assert (done.code, done.err.startswith(f"error: {message}"), f"hint: {hint}" in done.err) == (2, True, True)


@pytest.mark.usefixtures("_real_processes")
def test_a_sweep_at_wandb_is_created_after_confirmation_and_named_if_the_submit_fails(serried, tmp_path, monkeypatch):
    project, created, asked = tmp_path / "project", [], []
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "sweep.json").write_text('{"parameters": {"lr": {"values": [1, 2]}}}')
    (project / "serried.toml").write_text("")
    (project / ".env").write_text(f"WANDB_API_KEY={40 * 'a'}\n")
    (project / ".env").chmod(0o644)
    monkeypatch.setattr(wandb_service, "create", lambda *words: created.append(words) or "ada/my digits/x1y2z3")
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", lambda question: asked.append(question) or len(asked) > 1)
    monkeypatch.setattr(prepare, "command_warnings", lambda _: [Risk("shell-syntax", "an odd command")])
    staged = ("--set", f"data.root={tmp_path}", "--set", "data.stage=['made']", "--set", "data.prepare='false {data}'")
    words = ("sweep", "sweep.json", "--wandb", "--cluster", "local", *staged)

    declined = serried(*words)
    assert (declined.code, created) == (130, []), declined.err
    assert f"note: other users may read the key of wandb: `chmod 600 {project}/.env`" in declined.err
    assert "warning: an odd command\n" in declined.err

    failed = serried(*words)
    assert (failed.code != 0, [folder for *_, folder in created]) == (True, [project])
    assert "note: created the sweep `ada/my digits/x1y2z3` at W&B" in failed.err
    assert "`serried sweep 'ada/my digits/x1y2z3' --count 2` starts its agents" in failed.err
    assert asked == ["create the sweep at W&B anyway?"] * 2


TOML = """
[experiments.train]
command = "python main.py"
resources = { ranks = 2, time = "3h" }
environment.env = { LEVEL = "7" }
metric = { name = "acc", from = 'stdout:acc=(.*)' }
"""
FILE = "program: train.py\nmetric: {name: acc, goal: maximize}\nparameters: {lr: {values: [1, 2]}}\n"
OTHER = "[experiments.other]\ncommand = 'x'\n"


@pytest.mark.usefixtures("_real_processes")
@pytest.mark.parametrize(
    ("toml", "file", "found"),
    [
        (TOML, FILE, ("train.py", 2, "stdout:acc=(.*)", False)),
        (TOML, FILE.replace("name: acc", "name: loss"), ("train.py", 2, "", False)),
        (TOML + OTHER, FILE, ("train.py", 1, "", True)),
        (TOML + OTHER, FILE + "experiment: train\nseeds: 3\n", ("train.py", 2, "stdout:acc=(.*)", False)),
        (TOML, FILE.replace("program: train.py\n", ""), ("main.py", 2, "stdout:acc=(.*)", False)),
        ("", FILE, ("train.py", 1, "", False)),
    ],
)
def test_a_sweep_with_its_own_command_keeps_the_settings_of_its_experiment(  # noqa: PLR0917 - a case and fixtures
    toml, file, found, serried, tmp_path, monkeypatch
):
    make_directory(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    Path("serried.toml").write_text(toml, encoding="utf-8")
    for program in ("train.py", "main.py"):
        Path(program).touch()
    Path("sweep.yaml").write_text(file, encoding="utf-8")
    done = serried("sweep", "sweep.yaml", "--cluster", "local", "--dry-run", "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)["plan"]
    warns = "names no experiment" in done.out
    assert (plan["command"][1], plan["allocation"]["ranks"], plan["sweep"]["source"], warns) == found
    assert bool(plan["environment"]["env"]) == (found[1] == 2)


@pytest.mark.parametrize(
    ("flag", "command", "shown"),
    [
        ("--grid=lr=1,2", "python -V", "e.g. python -V --lr=1"),
        ("--grid=lr=1,2", "python -V {config.lr} {seed}", "e.g. python -V 1 '{seed}'"),
        ("--random=lr=uniform:0..1", "python -V", "e.g. python -V --lr=…"),
    ],
)
def test_the_plan_of_a_sweep_shows_the_command_of_a_trial(flag, command, shown):
    search = ["--count", "2", "--method", "bayes", "--metric", "loss:min"] if "random" in flag else []
    done = here("sweep", flag, *search, "--cluster", "local", "--dry-run", "--", *command.split())
    assert done.stderr.partition("\n")[0] == f"command      {shown}", done.stderr


@pytest.mark.parametrize(
    ("command", "trial", "advised"),
    [
        ("python train.py {args}", "/1", "python train.py --lr=0.1"),
        ("python train.py --rate={config.lr}", "/1", "python train.py --rate=0.1"),
        ("python train.py {args} {task}", "/1", "COMMAND"),
        ("python train.py {args_json_file}", "/1", "COMMAND"),
        ("python train.py {args}", "", "python train.py --lr=0.2"),
    ],
)
def test_a_failed_trial_is_tried_again_with_its_parameters(command, trial, advised, serried, make):
    made = make(nodes=1, ranks=1, indices=range(2), sweep=Sweep("k3f9q2", ("lr",)))
    write_json(made.record.directory.plan, made.plan._replace(command=tuple(command.split())).to_json())
    write_json(made.where.trials, [{"lr": 0.2}, {"lr": 0.1}])
    for task in (0, 1):
        made.ending("FAILED", task=task, exit_code=1, first_failure=a_failure(tail=["ValueError: loss is nan"]))
    said = serried("why", f"k3f9q2{trial}").out
    assert [line.partition("serried run -- ")[2] for line in said.splitlines() if "try it here" in line] == [advised]
