"""Published image models of timm, op by op, beside what two GeForce cards took for them.

timm's own `benchmark.py` measured steps of hundreds of architectures on an RTX 3090 and an RTX 4090
(`added/programs/timm`): products in fp16 by autocast, weights in fp32, `cudnn.benchmark`, images
and weights plane by plane (nchw) or pixel by pixel (nhwc), inference under `no_grad`, training by
SGD with momentum. None of these rows is given to a model.

Architectures, not rows, are dealt out, by a hash of the name that nobody chose: the constants of
`ops/images.py` were settled on one half of those drawn; the other half is judged. They began as the
fit of an earlier study, which had seen some of either half. Beside ours: the datasheet's roofline
times the constant of each setting that the first half has in the median.
"""

from __future__ import annotations

import contextlib
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
# (task, card, layout, PyTorch) that are judged. Without `torch.compile`; the rows of PyTorch 1.13
# and 2.1 repeat the cards and layouts of 2.4
SETTINGS = (
    ("infer", "rtx_3090", "nchw", "2.4.0"), ("infer", "rtx_3090", "nhwc", "2.4.0"),
    ("infer", "rtx_4090", "nchw", "2.4.0"), ("infer", "rtx_4090", "nhwc", "2.4.0"),
    ("infer", "rtx_4090", "nchw", "2.9.1"),
    ("train", "rtx_3090", "nchw", "1.12"), ("train", "rtx_3090", "nhwc", "1.12"),
)  # fmt: skip
# architectures of each half, of those that all settings have at one size of image
DRAWN = 24
_SEED = "hybridperf timm 1"
CHOSEN, JUDGED = "chosen on", "left out"
GOALS = {"infer": 0.10, "train": 0.08}  # of medians
_QUICK = 3  # architectures of each half
_BY = (["task", "gpu", "memory_format", "torch"], ["task", "family", "memory_format"])
_SHOWN = [
    "half", "family", "arch", *_BY[0], "batch_per_gpu", "input", "step_time_s", "predicted_s",
    "low_s", "high_s", "roofline_s", "constant_s",
]  # fmt: skip
_COLUMNS = Columns("step_time_s", baselines={"roofline x constant": "constant_s"})
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
    with; its other checkpoints took as long.
    """
    path = data / TABLE
    if not path.exists():
        raise InputError(f"expected timm's measured steps at {path}, found none; give --data")
    rows = read_table(path)
    rows = rows[rows["compiled"] == "no"].assign(arch=rows["model"].str.split(".").str[0])
    settings = pd.DataFrame(SETTINGS, columns=["task", "gpu", "memory_format", "torch"])
    rows = rows.merge(settings.assign(setting=range(len(settings))))
    trained = rows.loc[rows["task"] == "train", ["arch", "input"]].drop_duplicates("arch")
    rows = rows.merge(trained).drop_duplicates(["arch", "setting"])
    whole = rows.groupby("arch")["setting"].transform("size") == len(SETTINGS)
    return rows[whole].sort_values(["arch", "setting"]).reset_index(drop=True)


def halves(archs: Iterable[str]) -> dict[str, str]:
    """The architectures drawn, each with its half: CHOSEN or JUDGED, by turns of their hashes."""

    def place(arch: str) -> str:
        return hashlib.sha256(f"{_SEED} {arch}".encode()).hexdigest()

    drawn = sorted(set(archs), key=place)[: 2 * DRAWN]
    return {arch: (CHOSEN, JUDGED)[at % 2] for at, arch in enumerate(drawn)}


def found(data: Path, quick: bool, say: Callable[[str], None] = print) -> Found:
    """Errors of both halves; by setting, and by family and layout, of the half that is judged.

    `quick`: a few architectures.
    """
    rows = measured(data)
    half = halves(rows["arch"])
    kept = [[arch for arch, of in half.items() if of == one] for one in (CHOSEN, JUDGED)]
    wanted = {arch for archs in kept for arch in archs[: _QUICK if quick else None]}
    rows = rows[rows["arch"].isin(wanted)]
    frame = judged(rows.assign(half=rows["arch"].map(half)), say)
    lines = list[ResultLine]()
    for name in (CHOSEN, JUDGED):
        for task, goal in GOALS.items():
            some = frame[(frame["half"] == name) & (frame["task"] == task)]
            title = f"timm, {task}, {name}"
            lines.append(_COLUMNS.line(f"{title}: median", some, goal, measure="median"))
            lines.append(_COLUMNS.line(title, some))
    left = frame[frame["half"] == JUDGED]
    tables = {"timm": frame[_SHOWN]}
    for by in _BY:
        tables[f"timm_by_{by[1]}"] = left.groupby(by).apply(_summary).reset_index()
    return Found("", tables, lines, "steps")


def judged(rows: pd.DataFrame, say: Callable[[str], None] = print) -> pd.DataFrame:
    """Rows with what is predicted of them; each step is captured once. Rows that cannot be are left
    out, and said.
    """
    made, steps = [], dict[tuple[Any, ...], Workload]()
    models = {gpu: load_model(gpu) for gpu in rows["gpu"].unique()}
    for row in rows.itertuples():
        side, fused = int(row.input.partition("x")[0]), int(row.torch.partition(".")[0]) > 1
        key = (row.arch, row.task, row.memory_format, row.batch_per_gpu, side, fused)
        if key not in steps:
            steps.clear()  # rows come by architecture: one is not asked for again
            try:
                steps[key] = workload_of(captured(*key))
            except InputError as error:
                say(f"left out {row.arch}, {row.task}: {error}")
                continue
        one = predict(models[row.gpu], steps[key])
        seconds = {"predicted_s": one.time_s, "low_s": one.low_s, "high_s": one.high_s}
        made.append({"at": row.Index, **seconds, "roofline_s": one.roofline_s})
    if not made:
        raise InputError(
            "expected programs that can be captured here, got none; see what was left out"
        )
    frame = rows.join(pd.DataFrame(made).set_index("at"), how="inner")
    frame["family"] = frame["arch"].map(family_of)
    ratio = (frame["step_time_s"] / frame["roofline_s"]).where(frame["half"] == CHOSEN)
    constant = ratio.groupby([frame[name] for name in _BY[0]]).transform("median")
    frame["constant_s"] = frame["roofline_s"] * constant
    return frame


def _summary(rows: pd.DataFrame) -> pd.Series:
    """Of some rows, as people read them."""
    of = _COLUMNS.scores(rows)
    shares = {
        "median": of.median, "mape": of.mape, "inside": of.coverage, "half_width": of.half_width,
        "constant": of.medians["roofline x constant"],
    }  # fmt: skip
    middle = (rows["predicted_s"] / rows["step_time_s"]).median()
    return pd.Series({"rows": float(len(rows)), **shares, "ratio": round(float(middle), 3)})


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
    # a torchvision that was built for CUDA cannot load its ops beside a PyTorch for CPUs, and
    # stops at the two that it describes; timm uses none of them
    ops = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            ops.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(ops)
    try:
        import timm
    except ImportError as error:
        raise InputError(
            f"expected timm, got {error}; pip install --no-deps timm torchvision"
        ) from error
    return timm, torch


_KEPT: list[Any] = []  # definitions last as long as what made them
