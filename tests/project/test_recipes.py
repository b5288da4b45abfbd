"""Recipes of docs/extending.md, followed: their blocks are written into a copy of the package,
which is then asked for prices of what was added.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
_BLOCK = re.compile(r"^```(?:toml|python|diff)\n# (hybridperf/\S+)\n(.*?)^```$", re.M | re.S)
_CHANGE = re.compile(r"((?:^-.*\n)+)((?:^\+.*\n)+)", re.M)


def recipe(heading: str) -> tuple[int, list[tuple[str, str]]]:
    """(how many files it says it takes, (path, text) of its blocks)."""
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page.split(f"## ... {heading} (")[1].split("\n## ")[0]
    said, text = section.split(" file", 1)
    return int(said), _BLOCK.findall(text)


def follow(heading: str, into: Path) -> set[str]:
    """Write a recipe's blocks; which files that made or changed."""
    said, blocks = recipe(heading)
    for name, text in blocks:
        path = into / name
        if changes := _CHANGE.findall(text):
            content = path.read_text()
            for old, new in changes:
                old, new = (re.sub(r"^.", "", one, flags=re.M).rstrip("\n") for one in (old, new))
                assert content.count(old) == 1, f"{name} has no longer one {old!r}"
                content = content.replace(old, new)
            path.write_text(content)
        else:  # a new file, or an entry at the end
            path.write_text((path.read_text() + "\n" if path.exists() else "") + text)
    touched = {name for name, _ in blocks}
    assert len(touched) == said, f"the recipe of {heading} says {said}"
    return touched


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[str]]]:
    """A folder with a package to which all of these were added, and the files that each touched."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(
        ROOT / "hybridperf", folder / "hybridperf", ignore=shutil.ignore_patterns("__pycache__")
    )
    kinds = ("a GPU", "a pipeline schedule", "a framework that trains", "a serving framework")
    return folder, {kind: follow(kind, folder) for kind in kinds}


_ASKED = """
import json
import pandas as pd
import hybridperf
from hybridperf.fields import fields_of
from hybridperf.model import model_or_datasheet
from hybridperf.serving.launch_lines import launch_lines
from hybridperf.serving.table import predict_serving
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.schedules import closed_form_s

out = {"package": hybridperf.__file__}
row = {"model": "llama3-8b", "system": "h100", "precision": "fp8", "isl": 512, "osl": 128,
       "concurrency": 64}
served = predict_serving(pd.DataFrame([{**row, "backend": name, "tp_size": 2}
                                       for name in ("My-Server 1.2", "nobody's")])).frame
out["served"] = served[["predicted_tpot_s", "note"]].to_dict("list")
engine = {"tp": 2, "pp": 1, "attention_dp": 1, "expert_ep": 1, "sequences": 8, "chunk": 512,
          "drafted": 0, "kv_dtype": "fp8"}
out["line"] = launch_lines(engine, "m")["mine"]
gemm = pd.DataFrame([{"op": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}])
out["gemm_s"] = [float(model_or_datasheet(name).predict_ops(gemm)["predicted_s"].iloc[0])
                 for name in ("my_gpu", "b200_sxm")]
served = predict_serving(pd.DataFrame([{**row, "backend": "vllm", "system": "my_gpu"}])).frame
out["gpu_note"] = served["note"].iloc[0]
step = {"model": "gpt3-6.7b", "n_gpus": 8, "pp": 4, "tp": 2, "dp": 1, "global_batch": 8,
        "micro_batch": 1, "seq": 2048, "framework": "megatron_2022"}
steps = predict_steps(pd.DataFrame([{**step, "schedule": name} for name in ("1f1b", "one_by_one")]),
                      device="my_gpu", system="aic_b200_sxm").frame
out["steps"] = steps[["predicted_s", "note"]].to_dict("list")
named = [{**step, "framework": name} for name in ("megatron_core", "my_trainer")]
steps = predict_steps(pd.DataFrame(named), device="my_gpu", system="aic_b200_sxm").frame
out["trained"] = steps[["predicted_s", "host_s", "note"]].to_dict("list")
out["words"] = list(fields_of("steps")["framework"].words)
out["closed_s"] = float(closed_form_s("one_by_one", 4, 6, 1.0, 2.0))
print(json.dumps(out))
"""


def test_recipes_say_how_many_files_they_take(extended: tuple[Path, dict[str, set[str]]]) -> None:
    counts = {kind: len(files) for kind, files in extended[1].items()}
    print(counts)
    assert counts == {
        "a GPU": 1, "a pipeline schedule": 2, "a framework that trains": 1,
        "a serving framework": 1,
    }  # fmt: skip


def test_what_recipes_add_has_prices(extended: tuple[Path, dict[str, set[str]]]) -> None:
    folder = extended[0]
    done = subprocess.run(
        [sys.executable, "-c", _ASKED], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    out = json.loads(done.stdout.splitlines()[-1])
    assert Path(out["package"]).is_relative_to(folder)
    ours, nobodys = out["served"]["predicted_tpot_s"]
    assert 0 < nobodys < ours, "60 us of the host for each token, where 15 are usual"
    assert ["nothing of it is known" in note for note in out["served"]["note"]] == [False, True]
    assert out["line"] == "my-server m --tp 2 --kv fp8"
    mine, known = out["gemm_s"]
    assert known < mine < 1.5 * known
    plain, slow = out["steps"]["predicted_s"]
    assert 1.5 * plain < slow < 4 * plain, out["steps"]["note"]
    usual, own = out["trained"]["predicted_s"]
    assert 5e-3 < own - usual < 0.1, "thrice the fixed 5 ms, and gradients twice as wide"
    assert "my_trainer" in out["words"]
    assert out["closed_s"] == 4 * 6 * 3.0
