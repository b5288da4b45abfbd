"""Published image models of timm, op by op, beside what two GeForce cards took for them.

timm's own `benchmark.py` measured steps of hundreds of architectures on an RTX 3090 and an RTX 4090
(`added/programs/timm`): products in fp16 by autocast, weights in fp32, `cudnn.benchmark`, images
and weights plane by plane (nchw) or pixel by pixel (nhwc), inference under `no_grad`, training by
SGD with momentum. None of these rows is given to a model. Inference had norms in fp16
(`--fast-norm`): in fp32 the batches of several models (hybrid ViTs, a Swin) need more than 24 GB.

Architectures, not rows, are dealt out, by a hash of the name that nobody chose. The first 48 are
spent: constants of `ops/images.py` were settled on half of them, and the other half was looked at.
Of those that follow, DEV is what mechanisms may be chosen on, ASIDE what judges. Constants saw both
cards before, so a card is left out by the baseline alone. Beside ours: the datasheet's roofline
times the constant of each setting that DEV has in the median; and the other card's constant.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, read_table
from hybridperf.model import load_model
from hybridperf.workloads.programs.torch.capture import Captured, capture
from hybridperf.workloads.programs.torch.fakes import without_memory
from hybridperf.workloads.programs.torch.program import workload_of

TABLE = "added/programs/timm.csv.gz"
# (task, card, layout, PyTorch, `torch.compile`) that are judged; the rows of PyTorch 1.13 and 2.1
# repeat the cards and layouts of 2.4
SETTINGS = (
    ("infer", "rtx_3090", "nchw", "2.4.0", "no"), ("infer", "rtx_3090", "nhwc", "2.4.0", "no"),
    ("infer", "rtx_4090", "nchw", "2.4.0", "no"), ("infer", "rtx_4090", "nhwc", "2.4.0", "no"),
    ("infer", "rtx_4090", "nchw", "2.9.1", "no"),
    ("train", "rtx_3090", "nchw", "1.12", "no"), ("train", "rtx_3090", "nhwc", "1.12", "no"),
    ("infer", "rtx_4090", "nchw", "2.4.0", "dynamo"),
    ("infer", "rtx_4090", "nchw", "2.9.1", "dynamo"),
)  # fmt: skip
# architectures of each half, of those that all settings have at one size of image; before them
# those that are spent
DRAWN, SPENT = 24, 48
_SEED = "hybridperf timm 1"
DEV, ASIDE = "dev", "aside"
GOALS = {"infer": 0.10, "train": 0.08, "compiled": 0.10}  # of medians
_QUICK = 3  # architectures of each half
_SETTING = ["task", "gpu", "memory_format", "torch", "compiled"]
_BY = (_SETTING, ["task", "compiled", "family", "memory_format"])
_SHOWN = [
    "half", "family", "arch", *_BY[0], "batch_per_gpu", "input", "step_time_s", "predicted_s",
    "low_s", "high_s", "roofline_s", "constant_s", "other_card_s",
]  # fmt: skip
_COLUMNS = Columns(
    "step_time_s",
    baselines={"roofline x constant": "constant_s", "other card's": "other_card_s"},
)
_READS_NUMBERS = ("regnet",)  # while they are made: with weights
# kinds of architecture by what their names begin with; all others are convolutional
_FAMILIES = {
    "ViT": "vit_ deit beit eva cait flexivit xcit sequencer samvit",
    "hybrid or windowed": (
        "swin maxvit maxxvit coatnet coatnext coat_ convit crossvit twins pvt mvit hiera "
        "levit visformer pit_ nest tnt focalnet davit gcvit edgenext mobilevit "
        "efficientformer volo halo botnet lambda eca_halo sehalo sebotnet poolformer "
        "caformer convformer"
    ),
    "MLP": "mixer gmixer gmlp resmlp",
    "depthwise": (
        "mobilenet efficientnet tf_efficientnet mnasnet fbnet lcnet tinynet mixnet "
        "tf_mixnet convnext convmixer ghostnet rexnet spnasnet semnasnet xception "
        "hardcorenas gc_efficientnet tf_mobilenet mobileone fastvit repghost "
        "inception_next repvit legacy_xception"
    ),
    "grouped": (
        "resnext seresnext regnet nfnet dm_nfnet eca_nfnet ecanfnet resnest dpn skresnext "
        "gcresnext ecaresnext legacy_seresnext nf_regnet cspresnext"
    ),
}


def family_of(arch: str) -> str:
    """The kind of architecture that a name belongs to."""
    named = (kind for kind, of in _FAMILIES.items() if arch.startswith(tuple(of.split())))
    return next(named, "dense CNN")


def measured(data: Path) -> pd.DataFrame:
    """Rows of the settings, one of each architecture: at the size of image that it was trained
    with; its other checkpoints took as long. An architecture has all settings that are not
    compiled, or is left out.
    """
    path = data / TABLE
    if not path.exists():
        raise InputError(f"expected timm's measured steps at {path}, found none; give --data")
    rows = read_table(path)
    rows = rows.assign(arch=rows["model"].str.split(".").str[0])
    settings = pd.DataFrame(SETTINGS, columns=_SETTING)
    rows = rows.merge(settings.assign(setting=range(len(settings))))
    trained = rows.loc[rows["task"] == "train", ["arch", "input"]].drop_duplicates("arch")
    rows = rows.merge(trained).drop_duplicates(["arch", "setting"])
    eager = settings["compiled"] == "no"
    has = rows[rows["compiled"] == "no"].groupby("arch").size()
    rows = rows[rows["arch"].isin(has.index[has == eager.sum()])]
    return rows.sort_values(["arch", "setting"]).reset_index(drop=True)


def halves(archs: Iterable[str]) -> dict[str, str]:
    """The architectures drawn, each with its half: DEV or ASIDE, by turns of their hashes."""

    def place(arch: str) -> str:
        return hashlib.sha256(f"{_SEED} {arch}".encode()).hexdigest()

    drawn = sorted(set(archs), key=place)[SPENT : SPENT + 2 * DRAWN]
    return {arch: (DEV, ASIDE)[at % 2] for at, arch in enumerate(drawn)}


def found(data: Path, quick: bool, say: Callable[[str], None] = print) -> Found:
    """Errors of both halves by card; by setting, and by family and layout, of the half that judges.

    `quick`: a few architectures.
    """
    rows = measured(data)
    half = halves(rows["arch"])
    kept = [[arch for arch, of in half.items() if of == one] for one in (DEV, ASIDE)]
    wanted = {arch for archs in kept for arch in archs[: _QUICK if quick else None]}
    rows = rows[rows["arch"].isin(wanted)]
    frame = judged(rows.assign(half=rows["arch"].map(half)), say)
    kind = frame["task"].where(frame["compiled"] == "no", "compiled")
    lines = list[ResultLine]()
    for (name, task, gpu), part in frame.groupby(["half", kind, "gpu"], sort=False):
        title = f"timm, {task}, {gpu}, {name}"
        lines.append(_COLUMNS.line(f"{title}: median", part, GOALS[task], measure="median"))
        lines.append(_COLUMNS.line(title, part))
    left = frame[frame["half"] == ASIDE]
    tables = {"timm": frame[_SHOWN]}
    for by in _BY:
        tables[f"timm_by_{by[1]}"] = left.groupby(by).apply(summary).reset_index()
    return Found("", tables, lines, "steps")


def judged(rows: pd.DataFrame, say: Callable[[str], None] = print) -> pd.DataFrame:
    """Rows with what is predicted of them; each step is captured once. Rows that cannot be are left
    out, and said.
    """
    made, steps, said = [], dict[tuple[Any, ...], Workload](), set[str]()
    models = {gpu: load_model(gpu) for gpu in rows["gpu"].unique()}
    for row in rows.itertuples():
        side, fused = int(row.input.partition("x")[0]), int(row.torch.partition(".")[0]) > 1
        step = (row.arch, row.task, row.memory_format, int(row.batch_per_gpu), side, fused)
        compiled = row.compiled != "no"
        if (*step, compiled) not in steps:
            steps = {key: one for key, one in steps.items() if key[0] == row.arch}
            try:
                steps[*step, compiled] = workload_of(captured(*step), compiled=compiled)
            except InputError as error:
                if (told := f"left out {row.arch}, {row.task}: {error}") not in said:
                    said.add(told)
                    say(told)
                continue
        one = predict(models[row.gpu], steps[*step, compiled])
        seconds = {"predicted_s": one.time_s, "low_s": one.low_s, "high_s": one.high_s}
        made.append({"at": row.Index, **seconds, "roofline_s": one.roofline_s})
    if not made:
        raise InputError(
            "expected programs that can be captured here, got none; see what was left out"
        )
    frame = rows.join(pd.DataFrame(made).set_index("at"), how="inner")
    frame["family"] = frame["arch"].map(family_of)
    ratio = (frame["step_time_s"] / frame["roofline_s"]).where(frame["half"] == DEV)
    constant = ratio.groupby([frame[name] for name in _SETTING]).transform("median")
    frame["constant_s"] = frame["roofline_s"] * constant
    alike = frame["task"] + frame["memory_format"]  # either card's, without torch.compile
    cards = ratio.where(frame["compiled"] == "no").groupby([alike, frame["gpu"]]).median()
    other = [
        cards[kind].drop(gpu).mean() if len(cards[kind]) > 1 else float("nan")
        for kind, gpu in zip(alike, frame["gpu"], strict=True)
    ]
    frame["other_card_s"] = frame["roofline_s"] * other
    return frame


def summary(rows: pd.DataFrame, columns: Columns = _COLUMNS) -> pd.Series:
    """Of some rows, as people read them."""
    of = columns.scores(rows)
    shares = {
        "median": of.median, "mape": of.mape, "inside": of.coverage, "half_width": of.half_width,
        **of.medians,
    }  # fmt: skip
    middle = (rows["predicted_s"] / rows["step_time_s"]).median()
    return pd.Series({"rows": float(len(rows)), **shares, "ratio": round(float(middle), 3)})


@functools.lru_cache(4)  # of one architecture, eager and compiled, on either card
def captured(arch: str, task: str, layout: str, batch: int, side: int, fused: bool) -> Captured:
    """One step of an architecture as `benchmark.py` runs it, without a GPU or weights.

    Args:
        arch: its name in timm.
        task: "infer" or "train".
        layout: "nchw" or "nhwc", of images and weights.
        batch: images of a step.
        side: pixels of an image's height and width.
        fused: attention is one kernel, as from PyTorch 2 on.
    """
    timm, torch = libraries()
    timm.layers.set_fused_attn(fused)
    timm.layers.set_fast_norm(task == "infer")
    order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    with contextlib.ExitStack() as stack:
        if not arch.startswith(_READS_NUMBERS):
            stack.enter_context(without_memory())
        model = _made(timm, arch, side)
        stack.enter_context(without_memory())
        model = model.to(memory_format=order).train(task == "train")
        images = torch.empty(batch, 3, side, side).contiguous(memory_format=order)
        of_loss = torch.nn.CrossEntropyLoss()

        def infer(images: Any) -> Any:
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                return model(images)

        if task == "infer":
            return capture(infer, (images,), train=False, name=arch)
        update = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

        def step(images: Any, labels: Any) -> None:
            update.zero_grad()
            with torch.autocast("cuda", torch.float16):
                scores = model(images)
            of_loss(scores, labels).backward()
            update.step()

        return capture(step, (images, torch.zeros(batch, dtype=torch.long)), name=arch)


def _made(timm: Any, arch: str, side: int) -> Any:
    """The model; some are made for one size of image."""
    try:
        return timm.create_model(arch, img_size=side)
    except TypeError:  # which takes images of any size
        return timm.create_model(arch)


def libraries() -> tuple[Any, Any]:
    """timm and PyTorch, `InputError` where one is missing."""
    try:
        import torch
    except ImportError as error:
        raise InputError(f"expected PyTorch, got {error}; pip install hybridperf[torch]") from error
    describe_torchvision(torch)
    try:
        import timm
    except ImportError as error:
        raise InputError(
            f"expected timm, got {error}; pip install --no-deps timm torchvision"
        ) from error
    return timm, torch


def describe_torchvision(torch: Any) -> None:
    """Makes a torchvision built for CUDA load beside a PyTorch for CPUs; it stops at two ops
    of its own, of which timm and Transformers use none.
    """
    ops = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            ops.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(ops)


_KEPT: list[Any] = []  # definitions last as long as what made them
