"""What workloads and predictions print of themselves."""

import hybridperf as hp


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
