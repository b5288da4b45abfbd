"""Inputs of the page, without a browser: what it shows as assumed may be put into them."""

from typing import Any

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.fields import fields_of
from hybridperf.page.questions import question, views

STEPS = (("llama2-7b", "h100_sxm", 16), ("gpt3-13b", "a100_sxm_80gb", 64),
         ("mixtral-8x7b", "b200_sxm", 8), ("bert-large", "v100_32g", 8))  # fmt: skip


def answer(view: str, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a view's values."""
    return hp.ask(*question(view, name, values, lambda file: (_ for _ in ()).throw(KeyError(file))
                            ).arguments)  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "n_gpus"), STEPS)
def test_inputs_of_a_step_may_say_what_is_assumed(model: str, gpu: str, n_gpus: int) -> None:
    """Any part of them: the same seconds, interval and memory."""
    random = np.random.default_rng(n_gpus)
    values = {"model": model, "gpu": gpu, "n_gpus": n_gpus, "tp": 2, "global_batch": 64}
    (shown,) = answer("step", "step", values)["rows"]
    inputs = {one["name"] for one in views()["step"]["fields"] if one["name"] in fields_of("steps")}
    own = hp.assumed(values).iloc[0].dropna().to_dict()
    own = {name: said for name, said in own.items() if name in inputs}
    assert {"framework", "precision", "sharding", "recompute", "seq", "micro_batch"} <= {*own}
    for share in (0.3, 0.6, 1.0):
        named = {name: said for name, said in own.items() if random.random() < share}
        (row,) = answer("step", "step", values | named)["rows"]
        for name in ("predicted_s", "low_s", "high_s", "memory_bytes", "mfu"):
            assert row[name] == pytest.approx(shown[name], rel=1e-9), named


def test_inputs_of_serving_and_layouts_may_say_what_is_assumed() -> None:
    """What they are without: a framework's release, all precisions; the assumed framework."""
    served = {"shape": "llama3-8b", "system": "h100", "gpus": 1}
    shown = answer("serving", "serve", served)["deployments"]
    defaults = {one["name"]: one["default"] for one in views()["serving"]["fields"]
                if one["name"] in ("isl", "osl")}  # fmt: skip
    named = served | defaults | {"precision": "bf16,fp8"}
    assert answer("serving", "serve", named)["deployments"] == shown
    planned = {"shape": "gpt2-xl", "system": "dgx_h100", "gpus": 2, "batch": 4}
    seconds = [one["time_s"] for one in answer("layouts", "plan", planned)["layouts"]]
    seq = hp.load_shape("gpt2-xl").seq
    for own in ({"framework": "megatron_core"}, {"seq": seq}, {"objective": "time"}):
        found = answer("layouts", "plan", planned | own)["layouts"]
        assert [one["time_s"] for one in found] == pytest.approx(seconds, rel=1e-9), own
