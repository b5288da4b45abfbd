"""What workloads and predictions print of themselves."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.model.calls import GivenSeconds, InStep, StepPlace


def test_a_workload_and_its_prediction_print_a_line_each() -> None:
    shape = hp.load_shape("gpt3-125m")
    workload = hp.transformer(hp.TransformerConfig(shape))
    assert len(repr(workload)) < 200
    assert repr(workload).startswith("<Workload: gpt3-125m")
    assert f"nodes: {len(workload.graph):,}, ranks: 1," in repr(workload)
    alone = hp.predict(hp.PerfModel.datasheet(hp.load_device("a100_sxm4_80g")), workload)
    assert "on a100_sxm4_80g:" in repr(alone)
    assert f"{alone.time_s:.4g} s (no interval)" in repr(alone)
    learned = hp.predict(hp.fit(None, "h100_sxm")[0], workload)
    for prediction in (alone, learned):
        assert len(repr(prediction)) < 200
        assert "\n" not in repr(prediction)


@pytest.mark.parametrize("in_step", [None, InStep((StepPlace(),), "", (10.0, 0.0, 10.0, 10.0))])
def test_a_step_without_time_divides_nothing_by_nothing(in_step: InStep | None) -> None:
    builder = GraphBuilder()
    builder.op(1)
    step = Workload("nothing", builder.build(), (GivenSeconds(0.0),), in_step=in_step)
    with np.errstate(all="raise"):
        found = hp.predict("a100_sxm4_80g", step)
        assert found.breakdown()["share"].tolist() == [0.0]
    assert found.time_s == found.low_s == found.high_s == 0.0
    assert not any("nan" in note for note in found.notes)
