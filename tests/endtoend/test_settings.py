"""Settings, from serried.toml and `--set` to the script and its command line, and back into `serried show`."""

from __future__ import annotations

import json
import sys

TOML = """\
[defaults.config]
lr = 1e-3
model = { width = 64, norm = "it's a {rank}" }
data = "/scratch/ada"
[experiments.train]
command = [%s, "train.py", "{config.model.norm}", "--epochs=7"]
resources.ranks = 2
config.model.width = 256
"""

SCRIPT = """\
import json, os, sys
import serried.train as st
defaults = {"lr": 1.0, "epochs": 3, "data": "", "model": {"width": 1, "norm": "", "depth": 2}}
made = st.config(defaults, argv=sys.argv[2:])
with open(f"{os.environ['SERRIED_RESULTS_DIR']}/rank-{os.environ['RANK']}.json", "w") as file:
    json.dump({"made": made, "word": sys.argv[1], "told": json.loads(os.environ["SERRIED_CONFIG"])}, file)
"""


def test_every_rank_is_told_the_same_and_show_knows_it(local):
    (local.project / "serried.toml").write_text(TOML % json.dumps(sys.executable))
    (local.project / "train.py").write_text(SCRIPT)
    run = local.submit("--set", "config.lr=1", "--set", "config.model.depth=5")
    assert local.wait(run)[0] == 0
    results = local.directory(run) / "results"
    told = {"lr": 1, "model.width": 256, "model.norm": "it's a {rank}", "data": "/scratch/ada", "model.depth": 5}
    model = {"width": 256, "norm": "it's a {rank}", "depth": 5}
    made = {"lr": 1.0, "epochs": 7, "data": "/scratch/ada", "model": model}
    expected = {"made": made, "word": "it's a {rank}", "told": told}
    assert [json.loads((results / f"rank-{rank}.json").read_text()) for rank in (0, 1)] == [expected, expected]

    kept = json.loads((results / "config.json").read_text())
    shown = local.show(run)
    assert shown["config"] == {"told": told, "kept": made, "fingerprint": kept["fingerprint"]}
    assert shown["plan"]["config"] == told
    assert f"hash {kept['fingerprint']} of all settings" in local.serried("show", run).stdout


def test_a_word_of_the_command_that_no_setting_fills_in_is_refused(local):
    done = local.serried("submit", "--cluster", "local", "--set", "config.lr=1", "--", "train", "--lr={config.rl}")
    error = "the command uses `{config.rl}`, but `config` has no such setting"
    said = f"error: {error}\n\nhint: did you mean `config.lr`?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
