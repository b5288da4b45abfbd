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


@pytest.mark.parametrize("device", ["t4", "mi210", "a100_pcie_40g"])
def test_single_precision_with_half_of_the_rows_is_never_slower_beyond_what_was_measured(device):
    """Of cards with rows of their own; one that borrows theirs falls where those fall."""
    rows = [
        {"op": "bmm", "dtype": "fp32", "batch": batch, "m": m, "n": n, "k": k}
        for batch in (2, 24, 96) for n in (256, 4096, 16384) for k in (256, 2048, 8192)
        for m in (16, 32, 96, 192, 8192, 16384)
    ]  # fmt: skip
    told = load_model(device).predict_ops(pd.DataFrame(rows))
    half_s, whole_s = told["predicted_s"].to_numpy().reshape(-1, 2).T
    beyond = ~told["in_range"].to_numpy(bool).reshape(-1, 2)[:, 1]
    assert beyond.sum() > 20
    assert (whole_s >= 0.97 * half_s)[beyond].all()
