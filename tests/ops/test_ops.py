"""What ops compute and move, by hand; the columns of other people's tables; our counts against the
files'.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.ops import GROUPS, Op, columns, columns_of, op_by_name, op_names
from hybridperf.ops.table import parse_ops


def work(name: str, dtype: str = "fp32", **dimensions: float):
    cls, fixed = op_by_name(name)
    return cls(dtype, **dimensions, **fixed).work()


@pytest.mark.parametrize(
    ("name", "dimensions", "flops", "transcendentals", "numbers"),
    [
        ("gemm", {"m": 2, "n": 3, "k": 5}, 2 * 30, 0, 10 + 15 + 6),
        ("linear", {"m": 2, "n": 3, "k": 5}, 2 * 30 + 6, 0, 10 + 15 + 6 + 3),
        ("bmm", {"batch": 7, "m": 2, "n": 3, "k": 5}, 7 * 60, 0, 7 * 31),
        (
            "conv",
            {"batch": 2, "c_in": 3, "c_out": 5, "h_in": 8, "h_out": 6, "kh": 3},
            2 * 2 * 5 * 36 * 3 * 9,
            0,
            384 + 135 + 360,
        ),
        (
            "conv",
            {
                "batch": 2,
                "c_in": 4,
                "c_out": 6,
                "h_in": 8,
                "h_out": 8,
                "kh": 3,
                "groups": 2,
                "taps": 64 / 9,
            },
            2 * 2 * 6 * 64 * 2 * 64 / 9,
            0,
            512 + 108 + 768,
        ),
        ("add", {"rows": 4, "cols": 8}, 32, 0, 3 * 32),
        ("mulu", {"rows": 4, "cols": 8}, 32, 0, 2 * 32),
        ("tanh", {"rows": 4, "cols": 8}, 0, 32, 2 * 32),
        ("softmax", {"rows": 4, "cols": 8}, 4 * 32, 32, 2 * 32),
        ("ln", {"rows": 4, "cols": 8}, 7 * 32, 4, 2 * (32 + 8)),
        ("reduction", {"rows": 4, "cols": 8}, 32, 0, 36),
        ("copy", {"rows": 4, "cols": 8}, 0, 0, 64),
        ("transpose", {"rows": 4, "cols": 8, "batch": 2}, 0, 0, 128),
        ("cumsum", {"rows": 4, "cols": 8}, 32, 0, 64),
        ("sort", {"rows": 4, "cols": 8}, 0, 0, 64),
        ("random", {"rows": 4, "cols": 8}, 0, 0, 32),
        ("sgd", {"parameters": 10}, 20, 0, 30),
        ("adam", {"parameters": 10}, 120, 10, 70),
        ("gather", {"rows": 4, "cols": 8, "vocab": 100}, 0, 0, 4 * (2 * 8 + 1)),
        ("scatter_add", {"rows": 4, "cols": 8, "vocab": 100}, 32, 0, 4 * (3 * 8 + 1)),
        ("nm_gemm", {"m": 8, "n": 16, "k": 32}, 8 * 16 * 32, 0, 256 + 128 + 256 * (1 + 2 / 32)),
        ("allocation", {"bytes": 40960}, 0, 0, 0),
    ],
)
def test_work_by_hand(
    name: str, dimensions: dict, flops: float, transcendentals: float, numbers: float
) -> None:
    done = work(name, **dimensions)
    assert float(done.flops) == pytest.approx(flops)
    assert float(done.transcendentals) == transcendentals
    assert float(done.bytes) == 4 * numbers


def test_bytes_follow_the_dtype() -> None:
    assert work("gemm", "bf16", m=2, n=3, k=5).bytes == 2 * 31
    assert work("copy", "int8", rows=2, cols=3).bytes == 12


def test_steps_by_hand() -> None:
    # operands and result number by number, and starting
    assert work("bmm", batch=7, m=2, n=3, k=5).steps == 7 * (31 + 1000)
    # channels of a pixel lie together
    assert work("conv", batch=2, c_in=3, c_out=5, h_in=8, h_out=6, kh=3).steps == 2 * 36 * 9
    assert work("allocation", bytes=40960.0).steps == 10  # pages
    assert work("sort", rows=2.0, cols=7.0).steps == 2 * 7 * 3
    assert work("gather", rows=4, cols=8, vocab=100).steps == 4


def test_a_gather_reuses_what_it_may_meet_again() -> None:
    """Far more lookups than rows: the whole table is in use; far fewer: as many rows as lookups."""
    assert float(work("gather", rows=1e6, cols=8, vocab=100).reuse_bytes) == pytest.approx(
        100 * 32, rel=1e-4
    )
    assert float(work("gather", rows=10, cols=8, vocab=1e7).reuse_bytes) == pytest.approx(
        10 * 32, rel=1e-2
    )


def test_strided_fusions_have_knobs_of_their_own() -> None:
    cls, fixed = op_by_name("fused")
    sizes = {
        "elements": 10.0,
        "flops": 1.0,
        "transcendentals": 0.0,
        "bytes_read": 40.0,
        "bytes_written": 40.0,
    }
    index = cls("fp32", **sizes, strided_reads=np.array([0.0, 5.0]), **fixed).group_index()
    assert [GROUPS[g] for g in index] == ["elementwise", "strided_loop"]


def test_library_reductions_over_an_edge_have_knobs_of_their_own() -> None:
    """Windows over 100 numbers, exactly and past the end; the bytes read hold the initial value,
    too.
    """
    cls, fixed = op_by_name("fused_library_reduction")
    sizes = {"flops": 100.0, "transcendentals": 0.0, "bytes_read": 404.0, "bytes_written": 16.0}
    index = cls("fp32", elements=np.array([100.0, 128.0]), **sizes, **fixed).group_index()
    assert [GROUPS[g] for g in index] == ["library_reduction", "padded_library_reduction"]


@pytest.mark.parametrize("name", op_names())
def test_every_op_has_a_group_and_parses_from_its_own_row(name: str) -> None:
    """`columns` and `parse_ops` are each other's inverse, for every name."""
    cls, fixed = op_by_name(name)
    op = cls(
        "fp32",
        **{dimension: 8.0 for dimension in cls.dimensions() if dimension not in fixed},
        **fixed,
    )
    assert 0 <= int(op.group_index()) < len(GROUPS)
    row = columns(op)
    assert op_by_name(row["op"])[0] is cls
    parsed = parse_ops(pd.DataFrame([row]), load_device("here"))
    (part,) = parsed.parts
    for field in ("flops", "bytes", "steps", "transcendentals"):
        assert float(getattr(part.work, field)[0]) == float(getattr(op.work(), field))
    assert int(part.group[0]) == int(op.group_index())


def test_an_op_answers_for_physics_alone() -> None:
    """Fields, work, and what a price may ask; tables and learners ask nouns of their own."""
    fields = {field.name for field in dataclasses.fields(Op)}
    public = {name for name in dir(Op) if not name.startswith("_")} - fields
    assert len(public) <= 8, sorted(public)
    for cls in {op_by_name(name)[0] for name in op_names()}:
        assert [base for base in cls.__mro__[1:] if base.__bases__[1:]] == []


@pytest.mark.parametrize("name", ["gemm", "conv", "softmax", "gather", "sort"])
def test_columns_are_single_ops_side_by_side(name: str) -> None:
    cls, fixed = op_by_name(name)
    rng = np.random.default_rng(0)
    names = [n for n in cls.dimensions() if n not in fixed and n not in columns_of(cls).optional]
    table = {n: rng.integers(1, 50, 5).astype(float) for n in names}
    together = cls("fp32", **table, **fixed).work()
    for i in range(5):
        alone = cls("fp32", **{n: float(v[i]) for n, v in table.items()}, **fixed).work()
        for field in dataclasses.fields(alone):
            value = np.broadcast_to(getattr(together, field.name), 5)[i]
            assert float(value) == pytest.approx(float(getattr(alone, field.name)), rel=1e-6)


def test_gradients_reach_dimensions() -> None:
    cls, _ = op_by_name("gemm")
    slope = jax.grad(lambda k: cls("fp32", m=2.0, n=3.0, k=k).work().flops)(5.0)
    assert float(slope) == 2 * 2 * 3


def test_column_names_of_neusight_and_deepbench() -> None:
    """Square sizes and one `kernel_size`, or both sides of everything; also one after the other in
    one table.
    """
    neusight = pd.DataFrame(
        [
            {
                "op": "conv",
                "dtype": "fp32",
                "batch": 2,
                "c_in": 3,
                "c_out": 5,
                "kernel_size": 3,
                "h_in": 8,
                "h_out": 6,
            }
        ]
    )
    deepbench = pd.DataFrame([{
        "op": "conv", "dtype": "fp32", "batch": 2, "c_in": 3, "c_out": 5, "kw": 5, "kh": 3,
        "w_in": 10, "h_in": 8, "w_out": 6, "h_out": 6,
    }])  # fmt: skip
    device = load_device("v100")
    both = pd.concat([neusight, deepbench], ignore_index=True)
    for frame, expected in ((neusight, [9]), (deepbench, [15]), (both, [9, 15])):
        parsed = parse_ops(frame, device)
        assert not parsed.problem.any()
        np.testing.assert_allclose(
            parsed.parts[0].work.flops, [2 * 2 * 5 * 36 * 3 * taps for taps in expected]
        )


def test_unknown_op_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'softmax'"):
        op_by_name("softmaxx")


# Files whose `flops` column counts what ours does: 2 per multiply-add, padding of a convolution
# included, one per output for a bias. Theirs differ from ours for softmax (5 to our 4 + 1
# transcendental), layernorm (8 to 7) and gelu; embedding lookups have 1 there.
FILES = [
    "neusight_bmm",
    "neusight_linear",
    "neusight_conv",
    "deepbench_gemm",
    "deepbench_conv",
    "aiconfigurator_gemm",
    "vidur_gemm",
]


@pytest.mark.parametrize("name", FILES)
def test_our_flops_are_the_files(name: str, data_dir: Path) -> None:
    frame = read_table(data_dir / "compute" / f"{name}.csv.gz")
    frame = frame.sample(min(len(frame), 3000), random_state=0).reset_index(drop=True)
    # any device with all these dtypes: counts do not depend on it
    parsed = parse_ops(frame, load_device("b200"))
    assert not parsed.problem.any()
    for part in parsed.parts:
        # the files round to six digits
        close = np.abs(part.work.flops / frame["flops"].to_numpy()[part.rows] - 1) < 1e-4
        assert close.all(), (
            f"{(~close).sum()} of {len(close)} rows, first"
            f" {frame.iloc[part.rows[~close][0]].to_dict()}"
        )


@pytest.mark.parametrize("name", ["neusight_softmax", "neusight_ln", "neusight_elementwise"])
def test_our_bytes_are_the_files(name: str, data_dir: Path) -> None:
    """Loops: each input once, each output once. Flops of a softmax, norm or gelu are a matter of
    counting, bytes are not.
    """
    frame = (
        read_table(data_dir / "compute" / f"{name}.csv.gz")
        .sample(2000, random_state=0)
        .reset_index(drop=True)
    )
    parsed = parse_ops(frame, load_device("v100"))
    assert not parsed.problem.any()
    for part in parsed.parts:
        np.testing.assert_allclose(part.work.bytes, frame["bytes"].to_numpy()[part.rows], rtol=1e-2)
