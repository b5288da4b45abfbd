"""NVIDIA's published PyTorch examples, op by op, beside the throughput that their READMEs state.

`added/programs/deeplearningexamples` and the tables of image models in `example_steps.toml`: V100,
T4 and A100, 1 to 64 GPUs, TF32, fp32 and fp16 by autocast, containers of 2020 to 2022. Judged are
the models whose code is a package's and whose config is public: timm's image models, SSD on its
ResNet, MONAI's DynUNet, BERT of Transformers, and NCF, which is two lookups and four layers. What
is left out is said with its reason. Nothing is fitted on a row, and no mechanism was chosen on one.

Batch, layout and optimizer are those of the repository's benchmark scripts: images of fp16 lie
pixel by pixel (nhwc), others plane by plane; several GPUs are `DistributedDataParallel`.

Beside ours, both learned on the rows of all other models: the constant share of the datasheet's
peak that a task and format reach in the median, and the roofline times the constant of these.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.claims import timm_models
from benchmarks.claims.harness import Columns, Found, ResultLine, facts, left_out_text
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, read_table
from hybridperf.model import model_or_datasheet
from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.fakes import without_memory
from hybridperf.workloads.programs.torch.program import workload_of

TABLE = "added/programs/deeplearningexamples.csv.gz"
GOAL = 0.15
_FACTS = facts("example_steps.toml")
_PEAK = {"amp_fp16": "fp16"}  # of a format, if not its own
_SMALL = 8  # samples of a batch: launches take longer than kernels
_LENGTH, _SIDES = 384, {"efficientnet_b4": 380}
_QUICK = 2  # batches of a setting
_BY = (
    ["task", "precision"], ["task", "device"], ["task", "model"], ["task", "gpus"],
    ["task", "batches"],
)  # fmt: skip
_COLUMNS = Columns(
    "step_time_s",
    baselines={"share of peak": "share_s", "roofline x constant": "constant_s"},
)


class Step(NamedTuple):
    """What is run: one architecture at one setting."""

    model: str
    task: str
    precision: str
    batch: int
    ranks: int


def measured(data: Path) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows that are judged, and how many are not, by reason."""
    path = data / TABLE
    if not path.exists():
        raise InputError(f"expected NVIDIA's published throughput at {path}, found none")
    rows = read_table(path)
    told, left_out = list[dict[str, Any]](), Counter[str]()
    seen = Counter[tuple[Any, ...]]()
    for row in rows.itertuples():
        binned = row.model == "BERT" and "LDDL" in str(row.note)
        reason = _FACTS["left_out"].get("BERT, pre-training" if binned else row.model)
        if reason:
            left_out[f"{row.model}: {reason}"] += 1
            continue
        precision = row.precision
        if row.model in _FACTS["joined"] and row.task == "infer":
            setting = (row.model, row.gpu, row.batch_per_gpu)
            precision = _FACTS["joined"][row.model][seen[setting]]
            seen[setting] += 1
        # "32 and 32", "32/32": of single precision and of fp16
        batches = [int(one) for one in re.findall(r"\d+", str(row.batch_per_gpu))]
        batch = batches[-1 if precision == "amp_fp16" else 0]
        scale = re.search(r"e\+0(\d)", row.unit)
        rate = float(row.samples_per_s) * 10 ** int(scale[1] if scale else 0)
        ranks = 1 if pd.isna(row.n_gpus) else int(row.n_gpus)
        told.append(_row(row.model, row.task, row.gpu, precision, batch, ranks, rate))
    told += _of_images()
    return pd.DataFrame(told), dict(left_out)


def _of_images() -> Iterator[dict[str, Any]]:
    """Rows of the tables of image models."""
    for one in _FACTS["images"]:
        for gpu, precision, batch, rates in one["train"]:
            for ranks, rate in rates.items():
                yield _row(one["model"], "train", gpu, precision, batch, int(ranks), rate)
        for gpu, precision, rates in one["infer"]:
            for batch, rate in rates.items():
                yield _row(one["model"], "infer", gpu, precision, int(batch), 1, rate)


def _row(
    model: str, task: str, gpu: str, precision: str, batch: int, ranks: int, rate: float
) -> dict[str, Any]:
    device, system = next(to for words, *to in _FACTS["machines"] if re.search(words, gpu))
    if precision == "tf32" and not device.startswith("a100"):
        precision = "fp32"
    return {
        "model": model, "task": task, "device": device, "system": system, "precision": precision,
        "batch": batch, "ranks": ranks, "step_time_s": batch * ranks / rate,
        "gpus": "one" if ranks == 1 else "a node" if ranks <= 8 or system == "dgx2" else "nodes",
        "batches": "small" if batch <= _SMALL else "large",
    }  # fmt: skip


def found(data: Path, quick: bool, say: Callable[[str], None] = print) -> Found:
    """Errors by task and format, and by device, model, number of GPUs and size of batch.

    `quick`: the smallest and the largest batch of each setting of inference.
    """
    rows, left_out = measured(data)
    if quick:
        setting = ["model", "task", "device", "precision", "ranks"]
        rows = rows.sort_values("batch").groupby(setting).tail(1)
        rows = rows[rows["task"] == "infer"].groupby("model").head(_QUICK)
    frame = beside_baselines(judged(rows.reset_index(drop=True), say))
    lines = list[ResultLine]()
    for (task, precision), part in frame.groupby(["task", "precision"]):
        title = f"examples, {task}, {precision}"
        lines.append(_COLUMNS.line(f"{title}: median", part, GOAL, measure="median"))
        lines.append(_COLUMNS.line(title, part))
    tables = {"examples": frame}
    for by in _BY:
        tables[f"examples_by_{by[1]}"] = (
            frame.groupby(by).apply(lambda part: timm_models.summary(part, _COLUMNS)).reset_index()
        )
    remarks = left_out_text({"deeplearningexamples": left_out})
    return Found(remarks, tables, lines, "rows")


def judged(rows: pd.DataFrame, say: Callable[[str], None] = print) -> pd.DataFrame:
    """Rows with what is predicted of them; each step is captured once. Rows that cannot be are left
    out, and said.
    """
    made, steps, told = [], dict[Step, Workload](), set[str]()
    pairs = rows[["device", "system"]].drop_duplicates().itertuples(index=False)
    machines = {
        (device, system): model_or_datasheet(device).with_collectives(collectives_by_name(system))
        for device, system in pairs
    }
    for row in rows.itertuples():
        step = Step(row.model, row.task, row.precision, int(row.batch), int(row.ranks))
        machine = machines[row.device, row.system]
        per_node = machine.collectives.system.accelerators_per_node
        try:
            if step not in steps:
                steps[step] = workload(step, per_node)
            one = predict(machine, steps[step])
        except InputError as error:
            if (what := f"left out {step.model}, {step.task}: {error}") not in told:
                told.add(what)
                say(what)
            continue
        peak = machine.device.peak_flops_per_s[_PEAK.get(row.precision, row.precision)]
        made.append({
            "at": row.Index, "predicted_s": one.time_s, "low_s": one.low_s, "high_s": one.high_s,
            "roofline_s": one.roofline_s, "at_peak_s": steps[step].flops / peak,
        })  # fmt: skip
    if not made:
        raise InputError(
            "expected programs that can be captured here, got none; see what was left out"
        )
    return rows.join(pd.DataFrame(made).set_index("at"), how="inner")


def beside_baselines(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with what is learned of those of all other models."""
    for name, bound in (("share_s", "at_peak_s"), ("constant_s", "roofline_s")):
        times = frame["step_time_s"] / frame[bound]
        learned = [_of_others(frame, times, row) for row in frame.itertuples()]
        frame = frame.assign(**{name: frame[bound] * learned})
    return frame


def _of_others(frame: pd.DataFrame, times: pd.Series, row: Any) -> float:
    """The median of other models' rows of the same task and format."""
    alike = (frame["task"] == row.task) & (frame["precision"] == row.precision)
    return float(times[alike & (frame["model"] != row.model)].median())


def workload(step: Step, gpus_per_node: int = 8) -> Workload:
    """One step of an example as its scripts run it, without a GPU or weights."""
    try:
        import torch
    except ImportError as error:
        raise InputError(f"expected PyTorch, got {error}; pip install hybridperf[torch]") from error
    timm_models.describe_torchvision(torch)
    half = step.precision == "amp_fp16"
    multiplied = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = step.precision == "tf32"
    make = _MODELS.get(step.model, _image_model)
    try:
        with without_memory(step.ranks):
            net, inputs, loss_of, update_by = make(torch, step)
            in_half = torch.autocast("cuda", torch.float16, enabled=half)

            def infer(*inputs: Any) -> Any:
                with torch.no_grad(), in_half:
                    return net(*inputs)

            if step.task == "infer":
                net.eval()
                seen = capture(infer, inputs, train=False, name=step.model)
                return workload_of(seen, gpus_per_node=gpus_per_node)
            net.train()
            update = update_by(net.parameters())
            replica = torch.nn.parallel.DistributedDataParallel(net) if step.ranks > 1 else net
            scaler = torch.amp.GradScaler("cuda", enabled=half)

            def train(*inputs: Any) -> None:
                update.zero_grad()
                with in_half:
                    loss = loss_of(replica(*inputs))
                scaler.scale(loss).backward()
                scaler.step(update)
                scaler.update()

            return workload_of(capture(train, inputs, name=step.model), gpus_per_node=gpus_per_node)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = multiplied


def _sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)


def _fused_adam(parameters: Any) -> Any:
    import torch

    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def _laid(torch: Any, step: Step, net: Any, *size: int) -> tuple[Any, Any]:
    """A network and images as its scripts lay them: of fp16 pixel by pixel."""
    order = torch.contiguous_format
    if step.precision == "amp_fp16":
        order = torch.channels_last_3d if len(size) == 4 else torch.channels_last
    images = torch.empty(step.batch, *size).contiguous(memory_format=order)
    return net.to(memory_format=order), images


def _image_model(torch: Any, step: Step) -> tuple[Any, ...]:
    """A classifier of timm's; labels are mixed, so that there is one number a class."""
    timm, _ = timm_models.libraries()
    side = _SIDES.get(step.model, 224)
    net, images = _laid(torch, step, timm.create_model(step.model), 3, side, side)
    wanted = torch.empty(step.batch, 1000)

    def loss_of(scores: Any) -> Any:
        return torch.nn.functional.cross_entropy(scores, wanted)

    return net, (images,), loss_of, _sgd


def _ssd(torch: Any, step: Step) -> tuple[Any, ...]:
    """SSD of images of 300 pixels on the first three stages of a ResNet-50, the third at the stride
    of the second (Liu et al., 1512.02325): six maps, 8732 boxes, 81 classes.
    """
    timm, _ = timm_models.libraries()
    nn, classes, boxes = torch.nn, 81, 8732

    def widened(before: int, inner: int, after: int, **more: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(True),
            nn.Conv2d(inner, after, 3, bias=False, **more), nn.BatchNorm2d(after), nn.ReLU(True),
        )  # fmt: skip

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = timm.create_model("resnet50")
            first = base.layer3[0]
            for convolution in (first.conv1, first.conv2, first.downsample[0]):
                convolution.stride = (1, 1)
            stem = (base.conv1, base.bn1, base.act1, base.maxpool)
            self.features = nn.Sequential(*stem, base.layer1, base.layer2, base.layer3)
            widths, inner = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
            halved = {"stride": 2, "padding": 1}
            self.further = nn.ModuleList(
                widened(widths[at], inner[at], widths[at + 1], **(halved if at < 3 else {}))
                for at in range(5)
            )
            heads = list(zip(widths, (4, 6, 6, 6, 4, 4), strict=True))
            self.places = nn.ModuleList(nn.Conv2d(c, 4 * n, 3, padding=1) for c, n in heads)
            self.kinds = nn.ModuleList(nn.Conv2d(c, classes * n, 3, padding=1) for c, n in heads)

        def forward(self, images: Any) -> Any:
            maps = [self.features(images)]
            for block in self.further:
                maps.append(block(maps[-1]))
            rows = [
                (one(x).reshape(len(x), 4, -1), other(x).reshape(len(x), classes, -1))
                for x, one, other in zip(maps, self.places, self.kinds, strict=True)
            ]
            return tuple(torch.cat(one, 2).contiguous() for one in zip(*rows, strict=True))

    wanted, kinds = torch.empty(step.batch, 4, boxes), torch.zeros(step.batch, boxes).long()

    def loss_of(found: Any) -> Any:
        """Distances of boxes that hold something, and of classes: three that hold nothing for each,
        those that are most wrong.
        """
        places, scores = (one.float() for one in found)
        held = kinds > 0
        count = held.sum(1)
        away = nn.functional.smooth_l1_loss(places, wanted, reduction="none").sum(1)
        wrong = nn.functional.cross_entropy(scores, kinds, reduction="none")
        _, order = wrong.masked_fill(held, 0).sort(1, descending=True)
        _, rank = order.sort(1)
        kept = held.float() + (rank < (3 * count).clamp(max=boxes).unsqueeze(-1)).float()
        total = (held.float() * away).sum(1) + (wrong * kept).sum(1)
        return (total / count.clamp(min=1)).mean(0)

    net, images = _laid(torch, step, Detector(), 3, 300, 300)
    return net, (images,), loss_of, _sgd


def _unet(torch: Any, step: Step) -> tuple[Any, ...]:
    """nnU-Net of brain tumours: slices of 192 x 160, or volumes of 128^3 where batches are small;
    five halvings, instance norms; Dice and cross entropy.
    """
    try:
        from monai.networks.nets import DynUNet
    except ImportError as error:
        raise InputError(f"expected MONAI, got {error}; pip install --no-deps monai") from error
    size = (128, 128, 128) if step.batch <= _SMALL else (192, 160)
    net = DynUNet(
        len(size), 4, 4, [3] * 6, [1, *[2] * 5], [2] * 5, trans_bias=True,
        norm_name=("INSTANCE", {"affine": True}),
        act_name=("leakyrelu", {"inplace": False, "negative_slope": 0.01}),
    )  # fmt: skip
    if len(size) == 3:
        net, images = _laid(torch, step, net, 4, *size)
    else:
        images = torch.empty(step.batch, 4, *size)
    labels = torch.zeros(step.batch, 1, *size)

    def loss_of(found: Any) -> Any:
        found = found.float()
        kinds = torch.zeros_like(found).scatter_(1, labels.long(), 1)
        pixels = [0, *range(2, found.dim())]
        shared = (found.softmax(1) * kinds).sum(pixels)
        dice = 1 - 2 * shared / (found.softmax(1).sum(pixels) + kinds.sum(pixels)).clamp(min=1e-5)
        wrong = torch.nn.functional.cross_entropy(found, labels.squeeze(1).long())
        return dice[1:].mean() + wrong

    return net, (images,), loss_of, _fused_adam


def _bert(torch: Any, step: Step) -> tuple[Any, ...]:
    """BERT-large that finds answers in 384 tokens; attention op by op, as in 2020."""
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        vocab_size=30528, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
        intermediate_size=4096, attn_implementation="eager",
    )  # fmt: skip
    net = BertForQuestionAnswering(config)
    tokens, mask = (torch.zeros(step.batch, _LENGTH).long() for _ in range(2))
    place = torch.zeros(step.batch).long()
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_of(found: Any) -> Any:
        return (
            cross_entropy(found.start_logits, place) + cross_entropy(found.end_logits, place)
        ) / 2

    return net, (tokens, mask), loss_of, _fused_adam


def _ncf(torch: Any, step: Step) -> tuple[Any, ...]:
    """Neural collaborative filtering of MovieLens-20m: two pairs of lookups, a product of 64
    numbers beside layers of 256, 256, 128 and 64 (He et al., 1708.05031). Inference in fp16 has its
    weights so (`opt_level` O2 of NCF/inference.py).
    """
    nn, users, items = torch.nn, 138493, 26744

    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alike = nn.ModuleList(nn.Embedding(count, 64) for count in (users, items))
            self.joined = nn.ModuleList(nn.Embedding(count, 128) for count in (users, items))
            widths = (256, 256, 128, 64)
            self.layers = nn.ModuleList(nn.Linear(*one) for one in itertools.pairwise(widths))
            self.last = nn.Linear(128, 1)

        def forward(self, user: Any, item: Any) -> Any:
            one, other = (
                [table(at) for table, at in zip(tables, (user, item), strict=True)]
                for tables in (self.alike, self.joined)
            )
            found = torch.cat(other, 1)
            for layer in self.layers:
                found = nn.functional.relu(layer(found))
                found = nn.functional.dropout(found, 0.5, self.training)
            return self.last(torch.cat((one[0] * one[1], found), 1))

    user, item = (torch.zeros(step.batch).long() for _ in range(2))
    wanted = torch.empty(step.batch, 1)

    def loss_of(scores: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(scores.float(), wanted)

    net = Filter()
    if step.task == "infer" and step.precision == "amp_fp16":
        net = net.half()
    return net, (user, item), loss_of, _fused_adam


_MODELS = {"SSD": _ssd, "nnUNet": _unet, "BERT": _bert, "NCF": _ncf}
