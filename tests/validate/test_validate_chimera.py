"""Layer times of Chimera's profiles: the formula against a graph, the splits against peeking, the
claim on the data.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.validate import chimera
from hybridperf.validate.chimera import USUAL_LAUNCH_S, LayerKnobs, Layers, elsewhere, fit

KNOBS = LayerKnobs(0.7, 0.9, 0.8, 4e8, 5e-5, 4e-5)


def table(devices=("p100", "v100"), models=("bert-base", "bert-large"), batches=(1, 4, 32)):
    return pd.DataFrame(
        [(m, b, d) for d in devices for m in models for b in batches],
        columns=["model", "micro_batch", "device"],
    )


def made_up(knobs=KNOBS, **which):
    """Profiles as the model would have them."""
    frame = table(**which)
    forward_s, backward_s = Layers.of(frame).seconds(knobs)
    return frame.assign(f_s=forward_s, b_s=backward_s)


@pytest.mark.parametrize("launch_s", [1e-6, 2e-5, 5e-4])
def test_seconds_are_those_of_a_stream_that_a_host_fills(launch_s) -> None:
    layers = Layers.of(table(devices=("v100",), models=("bert-large",), batches=(2,)))
    knobs = dataclasses.replace(KNOBS, launch_s=launch_s)
    one = layers.forward
    kernel_s = np.where(
        one.product[0],
        (one.flops[0] + knobs.half_rate_flops) / (knobs.forward_efficiency * layers.peak[0]),
        one.bytes[0] / (knobs.loop_efficiency * layers.bandwidth[0]),
    ) + 2.2e-6  # fmt: skip
    builder = GraphBuilder()
    for at in range(len(kernel_s)):
        builder.op(at + 1, launch_row=len(kernel_s) + 1)
    when = timeline(lower(builder.build()), [*kernel_s, launch_s])
    assert layers.seconds(knobs)[0, 0] == pytest.approx(when.end_s.max(), rel=1e-9)


def test_flops_are_those_of_a_bert_layer() -> None:
    b, s, h = 4, 128, 1024
    layers = Layers.of(table(models=("bert-large",), batches=(b,)))
    assert layers.model_flops.tolist() == pytest.approx([24 * b * s * h**2 + 4 * b * s**2 * h] * 2)
    products = np.where(layers.backward.product, layers.backward.flops, 0).sum(1)
    assert products.tolist() == pytest.approx((2 * layers.model_flops).tolist())


def test_limits() -> None:
    """A host for nothing leaves the kernels' sum; a device for nothing leaves the launches; each
    knob slows as it should.
    """
    layers = Layers.of(table(devices=("v100",)))
    free_host = layers.seconds(dataclasses.replace(KNOBS, launch_s=1e-12, backward_launch_s=1e-12))
    slow_host = layers.seconds(dataclasses.replace(KNOBS, launch_s=1.0, backward_launch_s=1.0))
    assert slow_host[0] == pytest.approx(np.round(slow_host[0]), abs=0.1)
    assert (slow_host[0] > layers.forward.launches[:, -1]).all()
    base = layers.seconds(KNOBS)
    assert (free_host <= base).all()
    for name, better in (
        ("forward_efficiency", 1.1),
        ("backward_efficiency", 1.1),
        ("loop_efficiency", 1.1),
        ("half_rate_flops", 0.9),
    ):
        changed = layers.seconds(
            dataclasses.replace(KNOBS, **{name: getattr(KNOBS, name) * better})
        )
        assert (changed <= base).all(), name
        assert (changed < base).any(), name


def test_knobs_are_found_again() -> None:
    frame = made_up()
    layers = Layers.of(frame)
    found = fit(layers, frame[["f_s", "b_s"]].to_numpy().T)
    assert layers.seconds(found) == pytest.approx(layers.seconds(KNOBS), rel=0.03)
    assert found.launch_s == pytest.approx(KNOBS.launch_s, rel=0.05)
    away = elsewhere(found)
    assert away.launch_s == pytest.approx((found.launch_s * USUAL_LAUNCH_S) ** 0.5)
    assert away.half_rate_flops == found.half_rate_flops


def test_only_the_host_is_learned_from_the_row_that_tells_it() -> None:
    frame = made_up()
    slower = dataclasses.replace(KNOBS, launch_s=9e-5, backward_launch_s=8e-5)
    layers = Layers.of(frame).rows(np.array([0]))
    found = fit(layers, layers.seconds(slower), KNOBS, ("launch_s", "backward_launch_s"))
    assert dataclasses.astuple(found)[:4] == pytest.approx(
        dataclasses.astuple(KNOBS)[:4], rel=1e-12
    )
    assert found.launch_s == pytest.approx(9e-5, rel=0.03)


def test_what_is_left_out_is_not_seen() -> None:
    frame = made_up()
    changed = frame.copy()
    out = (frame["device"] == "v100") & (frame["model"] == "bert-large")
    changed.loc[out, ["f_s", "b_s"]] *= 3
    here, there = (chimera.judge(each).tables["layer_rows"] for each in (frame, changed))
    for split, known in (
        (chimera.MODEL, (here["model"] == "bert-large") & (here["device"] == "v100")),
        (chimera.DEVICE, here["device"] == "v100"),
    ):
        at = (here["split"] == split) & known
        assert at.sum() > 0
        for column in ("predicted_s", "null_s"):
            assert (here.loc[at, column] == there.loc[at, column]).all(), (split, column)
    assert (
        here.loc[here["split"] == chimera.IN_SAMPLE, "predicted_s"]
        != there.loc[there["split"] == chimera.IN_SAMPLE, "predicted_s"]
    ).any()


def test_splits_that_a_table_lacks_are_left_out() -> None:
    found = chimera.judge(made_up(devices=("v100",), models=("bert-base",)))
    assert [line.name for line in found.lines] == [
        f"layers, {chimera.IN_SAMPLE}, {direction}" for direction in chimera.DIRECTIONS
    ]
    cells = found.tables["layers"][["split", "device"]]
    assert set(cells.itertuples(index=False)) == {(chimera.IN_SAMPLE, "v100")}


def test_tables_that_cannot_be_judged() -> None:
    frame = made_up()
    with pytest.raises(InputError, match="needs a column 'b_s'"):
        chimera.judge(frame.drop(columns="b_s"))
    with pytest.raises(InputError, match="unknown model 'bert-huge'"):
        chimera.judge(frame.assign(model="bert-huge"))
    with pytest.raises(InputError, match="row 2"):
        chimera.judge(frame.assign(f_s=[1.0, -1.0, *frame["f_s"][2:]]))


def test_held_out_errors_are_below_the_smooth_roofline(data_dir) -> None:
    """The claim: mean |error| forward and backward per split, against a smooth roofline fitted on
    the same rows.
    """
    lines = chimera.judge(pd.read_csv(data_dir / chimera.FILE)).lines
    ours = {line.name: line.ours for line in lines}
    assert len(lines) == len(chimera.SPLITS) * len(chimera.DIRECTIONS)
    for line in lines:
        assert line.ours < line.baselines["smooth roofline"], line.name
    # held out; the baseline's 2.8 to 3.9 % are in sample
    assert ours[f"layers, {chimera.MODEL}, forward"] < 0.034
    assert ours[f"layers, {chimera.MODEL}, backward"] < 0.045
    assert ours[f"layers, {chimera.DEVICE}, backward"] < 0.045
