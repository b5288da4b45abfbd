"""Products whose sizes fill no tiles: tables of 16 bits hold none."""

import numpy as np
import pandas as pd
import pytest

from hybridperf.model import load_model

SIZES = np.unique(np.r_[2 ** np.arange(7, 14), np.arange(256, 8193, 512), [320, 1216, 4095]])


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("h100_sxm", "bf16"), ("h100_sxm", "fp16"), ("h100_sxm", "fp8"), ("h200_sxm", "fp8"),
     ("a100_sxm4_80g", "bf16"), ("a100_sxm4_80g", "fp16"), ("b200_sxm", "bf16"), ("l40s", "bf16")],
)  # fmt: skip
@pytest.mark.parametrize("grown", ["m", "n", "k", "mnk"])
def test_one_more_is_never_quicker(device, dtype, grown):
    """By 3 %: learned times are no surer."""
    rows = [
        {"op": "gemm", "dtype": dtype}
        | {name: size + more if name in grown else 4096 for name in "mnk"}
        for size in SIZES.tolist()
        for more in (0, 1)
    ]
    told_s = load_model(device).predict_ops(pd.DataFrame(rows))["predicted_s"].to_numpy()
    before_s, after_s = told_s.reshape(-1, 2).T
    assert (after_s >= 0.97 * before_s).all()
