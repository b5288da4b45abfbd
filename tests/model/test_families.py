"""Which family and slot a row is of, what the prior sees of it, and what is assumed where a row
does not say it.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device, this_cpu
from hybridperf.io import InputError
from hybridperf.learning.prior import FamilyRows, concatenate
from hybridperf.model.families import (
    FAMILIES,
    by_family,
    family_of,
    family_rows,
    gpu_of,
    groups_of,
    references_of,
    with_defaults,
)
from hybridperf.ops import GROUPS, DecodeAttention, Gemm, Softmax
from hybridperf.ops.table import OpRows, parse_ops

H100 = load_device("h100_sxm")
GEMM = {"op": "gemm", "dtype": "bf16", "m": 64, "n": 128, "k": 256}
CONV = {
    "op": "conv",
    "dtype": "fp32",
    "batch": 8,
    "c_in": 64,
    "c_out": 64,
    "h_in": 28,
    "w_in": 28,
    "h_out": 28,
    "w_out": 28,
    "kh": 3,
    "kw": 3,
}
MOE = {
    "op": "moe",
    "dtype": "bf16",
    "tokens": 128,
    "hidden": 1024,
    "inter": 512,
    "topk": 2,
    "experts": 16,
}
PREFILL = {
    "op": "context_attention",
    "dtype": "bf16",
    "batch": 2,
    "q_len": 512,
    "heads": 8,
    "head_dim": 128,
}
DECODE = {
    "op": "generation_attention",
    "dtype": "bf16",
    "batch": 2,
    "kv_len": 512,
    "heads": 8,
    "head_dim": 128,
}

NORM = {"op": "layernorm", "dtype": "fp32", "rows": 8, "cols": 8}


def parts_of(*rows: dict) -> list[OpRows]:
    return parse_ops(pd.DataFrame(list(rows)), H100).parts


def rows_of(*rows: dict) -> FamilyRows:
    """All rows, as they come out of the parts of a table."""
    return concatenate(
        [family_rows(part, np.ones(len(part.rows), bool), H100) for part in parts_of(*rows)]
    )


def flags_of(rows: FamilyRows) -> set[str]:
    """Words that some row carries."""
    return {
        name
        for name, values in zip(rows.inputs.names, rows.inputs.values.T, strict=True)
        if "=" in name and values.any()
    }


# --- families -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "family"),
    [
        (GEMM, "matmul"),
        ({**GEMM, "dtype": "fp8"}, "matmul"),
        ({**GEMM, "dtype": "fp32"}, "matmul_fp32"),
        ({**GEMM, "dtype": "tf32"}, "matmul_fp32"),
        ({**GEMM, "dtype": "fp64", "transposed_a": 1}, "matmul_fp32"),
        ({**GEMM, "op": "linear"}, "matmul"),
        ({**GEMM, "op": "bmm", "batch": 4}, "matmul"),
        ({**GEMM, "op": "bmm", "batch": 4, "dtype": "fp32", "transposed_a": 1}, "matmul_fp32"),
        (PREFILL, "prefill_attention"),
        (DECODE, "decode_attention"),
        ({**PREFILL, "op": "encoder_attention"}, "encoder_attention"),
        (MOE, "moe"),
        (CONV, "convolution"),
        ({**CONV, "groups": 8}, "convolution"),
        ({"op": "add", "dtype": "fp32", "rows": 8, "cols": 8}, "elementwise"),
        ({"op": "softmax", "dtype": "fp32", "rows": 8, "cols": 8}, "softmax"),
        ({"op": "rmsnorm", "dtype": "fp16", "rows": 8, "cols": 8}, "norm"),
        ({"op": "embedding", "dtype": "fp16", "rows": 8, "cols": 8, "vocab": 99}, "gather"),
        ({"op": "scale_matrix", "dtype": "bf16", "rows": 8, "cols": 8}, "quantise"),
        ({"op": "transpose", "dtype": "fp32", "rows": 8, "cols": 8}, ""),
        ({"op": "copy", "dtype": "fp32", "rows": 8, "cols": 8}, ""),
    ],
)
def test_an_ops_group_and_number_format_decide_its_family(row, family) -> None:
    (part,) = parts_of(row)
    ((found, keep),) = by_family(part)
    assert (found, keep.tolist()) == (family, [True])
    assert family_of(GROUPS[part.group[0]], part.op.dtype) == family


def test_every_family_has_groups() -> None:
    assert len(set(FAMILIES)) == len(FAMILIES)
    assert all(set(groups_of(family)) <= set(GROUPS) and groups_of(family) for family in FAMILIES)
    assert groups_of("matmul") == groups_of("matmul_fp32") == [
        "gemm", "gemm_transposed", "batched_gemm", "batched_gemm_transposed",
    ]  # fmt: skip


def test_rows_of_two_groups_are_one_family() -> None:
    (part,) = parts_of(GEMM, {**GEMM, "transposed_a": 1}, {**GEMM, "m": 8})
    assert len(set(part.group)) == 2
    assert [(family, keep.tolist()) for family, keep in by_family(part)] == [("matmul", [True] * 3)]


# --- slots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "slot"),
    [
        (GEMM, "gemm||bf16|"),
        ({**GEMM, "framework": "vllm", "version": "1", "kernel": "k"}, "gemm|vllm|bf16|"),
        (
            {**GEMM, "quant": "fp8_block", "dtype": "fp8", "framework": "trtllm"},
            "gemm|trtllm|fp8|fp8_block",
        ),
        ({**GEMM, "op": "linear"}, "linear||bf16|"),
        ({**GEMM, "op": "mla_gen_pre", "batch": 4}, "mla_gen_pre||bf16|"),
        ({**PREFILL, "framework": "vllm", "kv_dtype": "fp8"}, "context_attention|vllm|bf16|fp8"),
        (
            {**PREFILL, "kv_dtype": "bf16"},
            "context_attention||bf16|",
        ),  # as the op's: nothing to say
        # single precision is TF32 where there is such
        ({**CONV, "pass": "bwd_inputs"}, "conv||tf32|bwd_inputs"),
        (CONV, "conv||tf32|fwd"),
        ({**MOE, "framework": "trtllm", "distribution": "power_law_1.2"}, "moe|trtllm|bf16|"),
        ({**MOE, "framework": "trtllm", "distribution": "balanced"}, "moe|trtllm|bf16|"),
    ],
)
def test_slots_by_hand(row, slot) -> None:
    assert rows_of(row).implementation.tolist() == [slot]


@pytest.mark.parametrize(
    ("row", "alias"),
    [
        (GEMM, "matmul"),
        (CONV, "convolution"),
        (PREFILL, "prefill_attention"),
        (DECODE, "decode_attention"),
        (NORM, "ln"),
        (NORM, "batchnorm"),
        ({**NORM, "op": "scale_matrix", "dtype": "bf16"}, "quantise"),
    ],
)
def test_two_names_of_one_op_are_one_implementation(row, alias) -> None:
    """Whoever measured it wrote one of them, and whoever asks may write the other."""
    written, asked = rows_of(row), rows_of({**row, "op": alias})
    both, _ = with_defaults(asked, tuple(written.implementation))
    assert both.implementation.tolist() == written.implementation.tolist()
    assert flags_of(both) == flags_of(written)
    backwards, _ = with_defaults(written, tuple(asked.implementation))
    assert backwards.implementation.tolist() == asked.implementation.tolist()


def test_counts_are_the_ops_own() -> None:
    rows = rows_of(GEMM, {**GEMM, "m": 640})
    np.testing.assert_array_equal(rows.flops, [2 * m * 128 * 256 for m in (64, 640)])
    np.testing.assert_array_equal(rows.blocks, [1, 5])
    assert rows.sm_count[0] == H100.multiprocessors
    np.testing.assert_array_equal(rows.peak_flops_per_s, H100.peak("bf16", "matrix"))
    assert rows.sizes
    assert all(name.startswith("log2_") for name in rows.sizes)


def test_counts_are_of_what_a_frameworks_kernels_do() -> None:
    """TensorRT-LLM's read a cache once for each of 64 heads that share it, vLLM's once for all."""
    shared = {**DECODE, "heads": 64, "kv_heads": 1}
    rows = rows_of({**shared, "framework": "vllm"}, {**shared, "framework": "trtllm"}, shared)
    once, each, untold = rows.bytes
    assert each > 30 * once
    assert untold == once
    assert rows.steps[1] == pytest.approx(64 * rows.steps[0])
    np.testing.assert_array_equal(rows.flops, rows.flops[0])


# --- flags ----------------------------------------------------------------------------------------


def test_flags_are_one_per_word_that_a_row_carries() -> None:
    rows = rows_of(
        {**GEMM, "framework": "vllm", "kernel": "cutlass"}, {**GEMM, "framework": "trtllm"}, GEMM
    )
    at = {
        name: rows.inputs.values[:, i].tolist()
        for i, name in enumerate(rows.inputs.names)
        if "=" in name
    }
    assert at["framework=vllm"] == [1, 0, 0]
    assert at["framework=trtllm"] == [0, 1, 0]
    assert at["kernel=cutlass"] == [1, 0, 0]
    assert at["op=gemm"] == at["dtype=bf16"] == [1, 1, 1]
    assert not any(name.endswith("=") for name in at)
    assert not set(at) & set(rows.sizes)


def test_the_version_is_no_flag() -> None:
    assert not any(
        name.startswith("version") for name in rows_of({**GEMM, "version": "1.0"}).inputs.names
    )


def test_rows_of_several_parts_below_each_other() -> None:
    rows = rows_of(
        GEMM,
        {**GEMM, "op": "bmm", "batch": 4},
        {**GEMM, "quant": "fp8", "dtype": "fp8"},
        {**GEMM, "m": 8},
    )
    assert len(rows) == 4
    assert sorted(rows.implementation) == [
        "bmm||bf16|",
        "gemm||bf16|",
        "gemm||bf16|",
        "gemm||fp8|fp8",
    ]
    assert rows.inputs.values.shape == (4, len(rows.inputs.names))
    assert len(set(rows.inputs.names)) == len(rows.inputs.names)
    assert np.isfinite(rows.inputs.values).all()


def test_some_rows_of_a_part() -> None:
    (part,) = parts_of(*({**GEMM, "m": m} for m in (1, 2, 3)))
    rows = family_rows(part, np.array([True, False, True]), H100)
    assert len(rows) == 2
    np.testing.assert_array_equal(rows.flops, [2 * m * 128 * 256 for m in (1, 3)])


# --- what is assumed ------------------------------------------------------------------------------

KNOWN = (
    "gemm|vllm|bf16|",
    "gemm|trtllm|bf16|",
    "gemm|trtllm|fp8|fp8",
    "bmm||bf16|",
)  # vllm was met more often


def test_a_row_without_a_framework_is_of_the_one_most_often_met() -> None:
    rows, assumed = with_defaults(
        rows_of(GEMM, {**GEMM, "framework": "trtllm"}, {**GEMM, "op": "bmm", "batch": 2}), KNOWN
    )
    assert sorted(zip(rows.implementation, assumed, strict=True)) == [
        ("bmm||bf16|", ""),
        ("gemm|trtllm|bf16|", ""),
        ("gemm|vllm|bf16|", "no framework given: taken for vllm"),
    ]


def test_what_is_assumed_raises_its_flag() -> None:
    plain = rows_of(GEMM)
    assumed, _ = with_defaults(plain, KNOWN)
    said = rows_of({**GEMM, "framework": "vllm"})
    assert flags_of(assumed) == flags_of(said)
    assert flags_of(plain) == {"op=gemm", "dtype=bf16"}  # the rows given stay as they are
    assert plain.implementation.tolist() == ["gemm||bf16|"]
    mixed, _ = with_defaults(rows_of(GEMM, {**GEMM, "framework": "trtllm"}), KNOWN)
    of = mixed.inputs.select(["framework=vllm", "framework=trtllm"])
    assert {
        (slot, *flags) for slot, flags in zip(mixed.implementation, of.tolist(), strict=True)
    } == {
        ("gemm|vllm|bf16|", 1, 0),
        ("gemm|trtllm|bf16|", 0, 1),
    }


@pytest.mark.parametrize(
    "row",
    [
        {**GEMM, "framework": "eager"},
        {**GEMM, "dtype": "fp16"},
        {**GEMM, "quant": "int8_wo"},
        {**GEMM, "op": "mla_gen_pre", "batch": 2},
    ],
)
def test_nothing_is_assumed_where_more_than_the_framework_differs(row) -> None:
    rows, assumed = with_defaults(rows_of(row), KNOWN)
    assert rows.implementation.tolist() == rows_of(row).implementation.tolist()
    assert assumed.tolist() == [""]


@pytest.mark.parametrize("row", [{**GEMM, "op": "linear"}, {**GEMM, "op": "bmm", "batch": 2}])
def test_a_product_with_a_bias_or_in_a_batch_goes_as_one_where_those_were_not_measured(row) -> None:
    alone, own = KNOWN[:1], rows_of(row).implementation.tolist()
    rows, _ = with_defaults(rows_of(row), alone)
    assert rows.implementation.tolist() == [*alone]
    assert "op=gemm" in flags_of(rows)
    measured, _ = with_defaults(rows_of(row), (*alone, *own))
    assert measured.implementation.tolist() == own


@pytest.mark.parametrize(("row", "framework"), [(GEMM, "vllm"), (MOE, "trtllm"), (GEMM, "")])
def test_no_scheme_is_the_scheme_that_quantises_nothing(row, framework) -> None:
    """Serving frameworks' tables write `bfloat16` where nothing is quantised; a program says
    nothing.
    """
    written = rows_of({**row, "quant": "bfloat16", "framework": framework})
    asked, _ = with_defaults(rows_of(row), (*KNOWN[2:], *written.implementation))
    assert asked.implementation.tolist() == written.implementation.tolist()
    np.testing.assert_array_equal(asked.inputs.select(written.inputs.names), written.inputs.values)
    plain = rows_of(row)
    backwards, assumed = with_defaults(
        rows_of({**row, "quant": "bfloat16"}), tuple(plain.implementation)
    )
    assert (backwards.implementation.tolist(), assumed.tolist()) == (
        plain.implementation.tolist(),
        [""],
    )
    np.testing.assert_array_equal(backwards.inputs.select(plain.inputs.names), plain.inputs.values)
    assert flags_of(backwards) == flags_of(plain)
    other, _ = with_defaults(rows_of({**row, "quant": "int8_wo"}), tuple(written.implementation))
    assert (
        other.implementation.tolist()
        == rows_of({**row, "quant": "int8_wo"}).implementation.tolist()
    )


def test_a_step_names_what_goes_into_a_quantised_product_and_tables_what_multiplies() -> None:
    known = ("gemm|trtllm|bf16|bfloat16", "gemm|trtllm|fp8|fp8", "gemm|trtllm|bf16|int8_wo")
    for dtype in ("bf16", "fp8"):
        rows, _ = with_defaults(rows_of({**GEMM, "dtype": dtype, "quant": "fp8"}), known)
        assert rows.implementation.tolist() == ["gemm|trtllm|fp8|fp8"]
        assert {"dtype=fp8", "quant=fp8"} <= flags_of(rows)
    narrow_weights, _ = with_defaults(rows_of({**GEMM, "quant": "int8_wo"}), known)
    assert narrow_weights.implementation.tolist() == ["gemm|trtllm|bf16|int8_wo"]


def test_a_kernel_of_its_own_is_no_spelling() -> None:
    """Latent attention's projections are counted as batched products and are not run as such."""
    rows, assumed = with_defaults(
        rows_of({**GEMM, "op": "bmm", "batch": 4}),
        ("mla_gen_pre||bf16|", "mla_gen_post|vllm|bf16|"),
    )
    assert (rows.implementation.tolist(), assumed.tolist()) == (["bmm||bf16|"], [""])


def test_its_own_name_comes_before_another_spelling() -> None:
    rows, assumed = with_defaults(rows_of(GEMM), ("matmul||bf16|", "gemm|vllm|bf16|"))
    assert (rows.implementation.tolist(), assumed.tolist()) == (
        ["gemm|vllm|bf16|"],
        ["no framework given: taken for vllm"],
    )


def test_a_slot_without_framework_that_was_met_stays() -> None:
    rows, assumed = with_defaults(rows_of(GEMM), ("gemm|vllm|bf16|", "gemm||bf16|"))
    assert (rows.implementation.tolist(), assumed.tolist()) == (["gemm||bf16|"], [""])


# --- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["multiprocessors", "l2_bytes"])
def test_a_gpu_without_the_facts_is_refused_in_one_sentence(missing) -> None:
    spec = H100.model_copy(update={missing: None})
    assert gpu_of(spec) is None
    (part,) = parts_of(GEMM)
    with pytest.raises(
        InputError, match="multiprocessors or the L2 size of h100_sxm is not known; give them"
    ) as refused:
        family_rows(part, np.array([True]), spec)
    assert "\n" not in str(refused.value)


def test_a_cpu_is_no_gpu() -> None:
    assert gpu_of(this_cpu(1)) is None
    assert gpu_of(H100).sm_count == H100.multiprocessors


def test_a_single_op_is_seen_like_a_row_of_a_table() -> None:
    """`PerfModel` asks for ops of a graph one by one, without a name."""
    for op, row in (
        (Gemm("bf16", 64.0, 128.0, 256.0), GEMM),
        (DecodeAttention("bf16", batch=2.0, kv_len=512.0, heads=8.0, head_dim=128.0), DECODE),
        (Softmax("fp32", 8.0, 8.0), {"op": "softmax", "dtype": "fp32", "rows": 8, "cols": 8}),
    ):
        group = np.array([op.group_index()])
        part = OpRows(np.zeros(1, int), op, op.work(), group, H100.peak(op.peak_dtype, op.unit))
        one, row = family_rows(part, np.ones(1, bool), H100), rows_of(row)
        assert one.implementation.tolist() == row.implementation.tolist()
        assert one.inputs.names == row.inputs.names
        np.testing.assert_array_equal(one.inputs.values, row.inputs.values)
        for field in dataclasses.fields(FamilyRows):
            if field.name not in ("slot", "inputs", "sizes"):
                np.testing.assert_array_equal(
                    np.ravel(getattr(one, field.name))[0], np.ravel(getattr(row, field.name))[0]
                )


@pytest.mark.parametrize(
    ("device", "references"),
    [
        ("h200_sxm", ["h100_sxm"]),
        ("h100_sxm", ["h100_sxm"]),
        ("gb200", ["b200_sxm"]),
        ("b300_sxm", ["b200_sxm"]),  # another number of the same generation
        ("rtx_pro_6000_server", []),  # the same name, another generation of units
        ("l40s", []),
        ("a40", ["a100_sxm4_80g"]),
        ("t4", []),
    ],
)
def test_references_have_the_architecture_or_else_the_generation(
    device: str, references: list[str]
) -> None:
    assert (
        references_of(
            load_device(device), ["v100_sxm2", "a100_sxm4_80g", "h100_sxm", "b200_sxm", "nobody"]
        )
        == references
    )
