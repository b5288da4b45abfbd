"""The claim on operating points: one measurement once, whole models left out, baselines beside."""

import numpy as np
import pandas as pd

from hybridperf.validate.serving import judged, points_of, splits

ROW = {
    "backend": "vllm", "system": "h100_sxm", "precision": "fp8", "mode": "agg", "isl": 1024,
    "osl": 1024, "tp_size": 1, "ttft_s": 0.1,
}  # fmt: skip


def rows() -> pd.DataFrame:
    models = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B")
    sizes = [(model, clients) for model in models for clients in (1, 4, 16, 64)]
    made = [
        {**ROW, "model_path": model, "concurrency": clients, "tpot_s": 0.005 + 1e-4 * clients}
        for model, clients in sizes
    ]
    return pd.DataFrame([*made, made[0]])


def test_models_are_left_out_whole_and_twins_count_once() -> None:
    points = points_of(rows())
    assert len(points.served.rows) == 8
    for split in splits(points, "models", 1):
        given, mine = ({points.served.rows[at].model for at in one} for one in
                       (split.given, split.judged))  # fmt: skip
        assert len(mine) == 1
        assert not given & mine
    found = judged(points, "models", 1)
    lines = {line.name: line for line in found.lines}
    line = lines["models, TPOT, aggregated"]
    assert line.n == 8
    assert {*line.baselines} == {"trees", "no effects"}
    assert all(np.isfinite([line.ours, *line.baselines.values()]))
