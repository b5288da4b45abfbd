"""What every command does alike: `--version`, `--json`, `-q`, help by task, old spellings."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.main import get_command

from hybridperf.cli.app import app
from hybridperf.cli.common import WORDS

COMMANDS = get_command(app).commands
NAMES = [name for names in WORDS["tasks"].values() for name in names]


@pytest.fixture
def products(tmp_path):
    path = tmp_path / "rows.csv"
    frame = pd.DataFrame({"op": ["gemm", "foo"], "dtype": "bf16", "m": 512, "n": 512, "k": 512})
    frame.to_csv(path, index=False)
    return path


def test_the_version(run, refused):
    status, out, _ = run("--version")
    assert status == 0
    assert out.startswith("hybridperf 0")
    assert "No such option" in refused("--versions")


def test_help_lists_each_command_once_under_a_task(run):
    out = run("--help")[1]
    assert sorted(NAMES) == sorted(COMMANDS)
    places = [out.index(f"\n{task}:") for task in WORDS["tasks"]]
    assert places == sorted(places)


def _leaves():
    for name, command in COMMANDS.items():
        for inner, leaf in getattr(command, "commands", {"": command}).items():
            yield pytest.param(f"{name} {inner}".strip(), leaf, id=f"{name} {inner}".strip())


@pytest.mark.parametrize(("name", "command"), [*_leaves()])
def test_examples_are_of_todays_options(name, command):
    line = WORDS[command.callback.__name__]["command_line"]
    words = shlex.split(line)
    assert line.startswith(f"hybridperf {name}")
    command.make_context(name, words[1 + len(name.split()) :])


def test_rows_as_json(run, products):
    status, out, err = run("ops", products, "--model", "h100_sxm", "--json")
    told = json.loads(out)
    assert status == told["status"] == 3
    assert told["rows"][0]["predicted_s"] > 0
    assert told["rows"][1]["predicted_s"] is None
    assert "not predicted" in err
    assert run("ops", products, "--model", "h100_sxm", "--json", "-q")[1:] == (out, "")


def test_json_of_what_is_wrong_is_one_sentence(run, refused, tmp_path):
    assert "nowhere.csv" in refused("ops", tmp_path / "nowhere.csv", "--model", "v100", "--json")
    status, out, err = run("ops", tmp_path / "nowhere.csv", "--model", "v100", "--json", "-q")
    assert (status, out) == (2, "")
    assert "nowhere.csv" in err


@pytest.mark.parametrize("what", ["devices", "systems"])
def test_what_is_calibrated(run, what):
    out = run(what)[1]
    assert "datasheet only" in out
    known = {one["id"]: one["calibrated"] for one in json.loads(run(what, "--json")[1])[what]}
    measured = {"devices": "h100_sxm", "systems": "aic_h100_sxm"}[what]
    assert f"{known[measured]['rows']:,} rows, {known[measured]['date']}" in out


def test_devices_and_systems_are_counted_once(run):
    """The tables, the README and the tutorial agree."""
    said = {}
    for what in ("devices", "systems"):
        count = run(what)[1].splitlines()[-1]
        known = json.loads(run(what, "--json")[1])[what]
        said[what] = sum(one["calibrated"] is not None for one in known)
        assert count.startswith(f"{len(known)} {what}: {said[what]} calibrated")
    words = {11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 16: "sixteen"}
    gpus, systems = words[said["devices"]], words[said["systems"]]
    root = Path(__file__).parent.parent.parent
    tutorial = (root / "docs" / "tutorials" / "new_machine.md").read_text().lower()
    assert f"({gpus} GPUs;" in (root / "README.md").read_text()
    assert f"{gpus} gpus and {systems} systems come calibrated" in tutorial


def test_old_spellings_go_on_working_with_a_notice(run, tmp_path):
    status, _, err = run("plan", "--model=nonsense", "--system", "dgx_h100", "--gpus", 8,
                           "--out", tmp_path / "p.csv")  # fmt: skip
    assert status == 2
    notice, wrong = err.strip().splitlines()
    assert notice == "hybridperf: --model of `plan` is now --shape; the old spelling works, too"
    assert "nonsense" in wrong
    assert "--ranks of `shard`" in run("shard", tmp_path / "no.csv", "--ranks", 2)[2]
    assert "--shape" not in run("ops", tmp_path / "no.csv", "--model", "v100")[2]


def test_completion():
    asked = {
        "_HYBRIDPERF_COMPLETE": "complete_bash",
        "COMP_WORDS": "hybridperf sh",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['hybridperf']; from hybridperf.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True)
    assert sorted(done.stdout.split()) == [b"shard", b"share", b"show"]


def test_predict_measures_what_it_predicts(run, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "product.py").write_text(
        "import jax.numpy as jnp\n"
        "def step():\n"
        "    a = jnp.ones((256, 256))\n"
        "    return (lambda x, y: (x + x @ y, x.sum())), (a, a), (0,)\n"
    )
    status, out, _ = run(
        "predict", "--jax", "product:step", "--measure", "--out", "ops.csv", "--json"
    )
    assert status == 0
    told = json.loads(out)
    assert told["measured"]["measured_s"] > 0
    assert told["measured"]["predicted_s"] == told["time_s"]
    assert "gemm" in set(pd.read_csv("ops.csv")["group"])
    assert "expected --jax" in refused("predict", "--program", "p.json", "--measure")
