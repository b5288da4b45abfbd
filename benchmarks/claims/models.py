"""Whole models of Hugging Face by `hp.from_torch` alone, against the sum of their measured ops.

NeuSight measured one op of each shape of BERT-large and GPT2-large (`neusight_model_ops`); a model
is what its architecture has of them (`models.toml`), forward or also backward. Nothing of these
rows is given to us; other products and loops of the same GPUs are in their calibrations, as they
are in NeuSight's training set. What a program does besides (copies of heads, lookups, the sum that
stands for a loss) nobody measured: it counts against us. Baselines: NeuSight's own predictions and
its roofline of the same ops.

NeuSight calls each node of a traced layer 26 times, in the graph's order, on a GPU that had nothing
to do while the model was traced (`neusight/Tracing/trace.py` of sitar-lab/NeuSight). Some are still
at their base clock for the first products: a line of its own has these at the full clock.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.harness import Columns, Found
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, read_table
from hybridperf.model import load_model
from hybridperf_calibration.published.ops import MODEL_OPS, require_data, table_path

GOAL = 0.06
_UNMASKED = "hybridperf_unmasked"  # eager attention under a name that has no mask
_BASELINES = ("neusight", "roofline")
_COLUMNS = Columns(predicted="ours_s", baselines={name: f"{name}_s" for name in _BASELINES})
_DIRECTIONS = {"inf": "inference", "train": "training"}
_CASE = ["device", "model", "mode", "model_batch", "seqlen"]
_CALLS = 26
_PRODUCTS = ("linear", "bmm")


def measured(data: Path) -> pd.DataFrame:
    """A row per device, model, mode and batch: `measured_s`, `full_clock_s` with its first products
    at the full clock, and baselines' seconds by name.
    """
    require_data(data)
    ops, shapes = read_table(table_path(data, MODEL_OPS)), harness.facts("models.toml")
    ops = ops[ops["model"].isin(shapes)]
    ops["times"] = [
        _times(shapes[one.model], one.Name, one.mode)
        for one in ops[["model", "Name", "mode"]].itertuples()
    ]
    backward = ops["mode"] == "train"
    slowed = _slowed(ops, shapes["slow_start"])
    ops["full_fw_s"], ops["full_bw_s"] = ops["label_fw_s"] * slowed, ops["label_bw_s"] * slowed
    columns = {
        "measured_s": ("label_fw_s", "label_bw_s"), "full_clock_s": ("full_fw_s", "full_bw_s"),
    }  # fmt: skip
    for name in _BASELINES:
        columns[f"{name}_s"] = f"pred_fw_{name}_s", f"pred_bwall_{name}_s"
    for name, (forward, back) in columns.items():
        ops[name] = (ops[forward] + ops[back].where(backward, 0.0)) * ops["times"]
    return ops.groupby(_CASE, as_index=False)[list(columns)].sum()


def _slowed(ops: pd.DataFrame, starts: Mapping[str, Mapping[str, float]]) -> pd.Series:
    """The share of the full clock at which each op was measured [N]."""
    busy_s = ops["label_fw_s"] + ops["label_bw_s"].where(ops["mode"] == "train", 0.0)
    alike = ops["Name"].str.endswith("self_query").map({True: 3, False: 1})  # with key and value
    busy_s *= alike * _CALLS
    before_s = busy_s.groupby([ops[name] for name in _CASE]).cumsum() - busy_s
    until_s = ops["device"].map({name: one["until_s"] for name, one in starts.items()})
    share = ops["device"].map({name: one["share"] for name, one in starts.items()})
    early = ops["op"].str.lower().isin(_PRODUCTS) & (before_s < until_s)
    return share.where(early, 1.0)


def captured(model: str, batch: int, seq: int, train: bool) -> Workload:
    """A model's step in fp32, op by op, as `transformers` has it today."""
    try:
        import torch
        import transformers
    except ImportError as error:
        mend = "pip install hybridperf[torch] transformers"
        raise InputError(f"expected PyTorch and transformers, got {error}; {mend}") from error
    from hybridperf.workloads.programs.torch.fakes import without_memory
    from hybridperf.workloads.programs.torch.program import from_torch

    bert = transformers.BertForPreTraining if train else transformers.BertForSequenceClassification
    kinds = {
        "bert_large": (transformers.BertConfig, bert),
        "gpt2_large": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    }
    config, module = kinds[model]
    sizes = harness.facts("models.toml")[model]["config"]
    # dropout was not measured
    none = [name for name in vars(config()) if name.endswith(("pdrop", "dropout_prob"))]
    made = config(**sizes, use_cache=False, **dict.fromkeys(none, 0.0))
    made._attn_implementation = "eager"  # products and a softmax, as they were measured
    if model == "gpt2_large":  # its causal mask was not
        eager = transformers.models.gpt2.modeling_gpt2.eager_attention_forward
        transformers.AttentionInterface.register(_UNMASKED, eager)
        made._attn_implementation = _UNMASKED
    with without_memory():
        net = module(made)
        tokens = torch.zeros((batch, seq), dtype=torch.long)

        def step(tokens: torch.Tensor) -> Any:
            found = net(tokens, attention_mask=torch.ones_like(tokens))
            return found[0].sum() if train else found[0]

        net.train(train)
        return from_torch(step, tokens, train=train, name=model)


def _times(shape: Mapping[str, Any], name: str, mode: str) -> int:
    """How often a model has an op."""
    times = shape["times"] | shape.get(_DIRECTIONS[mode], {})
    in_layer, besides = times[name]
    return int(shape["layers"] * in_layer + besides)


@harness.claim("models", tuple(_DIRECTIONS.values()), by_data=True)
def run(data: Path | None, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """Errors of each case; `quick`: one model, one batch."""
    frame = measured(Path(data or ""))
    frame["direction"] = frame["mode"].map(_DIRECTIONS)
    frame = frame[frame["direction"].isin(wanted)]
    frame = frame[frame["model"].eq("bert_large") & frame["model_batch"].eq(8)] if quick else frame
    cases = frame[["model", "model_batch", "seqlen", "mode"]]
    steps = {
        key: captured(key[0], key[1], key[2], key[3] == "train")
        for key in dict.fromkeys(cases.itertuples(index=False, name=None))
    }
    ours = [
        predict(load_model(one.device), steps[one.model, one.model_batch, one.seqlen, one.mode])
        for one in frame.itertuples()
    ]
    frame["ours_s"] = [one.time_s for one in ours]
    frame["low_s"], frame["high_s"] = [one.low_s for one in ours], [one.high_s for one in ours]
    for name in ("ours", *_BASELINES):
        frame[f"{name}_error"] = frame[f"{name}_s"] / frame["measured_s"] - 1
    lines = [_COLUMNS.line("all", frame, GOAL)]
    for by in ("direction", "device"):
        lines += [_COLUMNS.line(str(name), some, GOAL) for name, some in frame.groupby(by)]
    warm = dataclasses.replace(_COLUMNS, measured="full_clock_s")
    slow = frame[frame["full_clock_s"] < frame["measured_s"]]
    lines += [warm.line(f"{name}, at full clock", some) for name, some in slow.groupby("device")]
    yield Found("", {"cases": frame}, lines, "cases")
