"""Strided operands of fused loops, by hand: a row of f32[64,256] spans 1 KiB, a cache line 64
bytes.
"""

import pytest

from hybridperf.workloads.programs.jax.fusion_loops import strided_reads
from hybridperf.workloads.programs.jax.hlo import parse

ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def reads(*lines: str) -> tuple[float, float]:
    """(strided reads, bytes spanned) of a fused computation given by its instructions."""
    body = "\n".join(f"  {line}" for line in lines)
    module = parse(f"{ADD}\nENTRY %fused (p: f32[]) -> f32[] {{\n{body}\n}}\n")
    return strided_reads(module.entry)


def test_elementwise_loop_has_no_strides() -> None:
    assert reads(
        "%p = f32[64,256]{1,0} parameter(0)",
        "%q = f32[64,256]{1,0} parameter(1)",
        "ROOT %r = f32[64,256]{1,0} add(%p, %q)",
    ) == (0.0, 0.0)


def test_transposed_operand_takes_a_line_per_element() -> None:
    """Along the result's rows the operand steps 1 KiB; its lines come back
    after 64 of these steps.
    """
    count, span = reads(
        "%p = f32[64,256]{1,0} parameter(0)",
        "%q = f32[256,64]{1,0} parameter(1)",
        "%t = f32[256,64]{1,0} transpose(%p), dimensions={1,0}",
        "ROOT %r = f32[256,64]{1,0} add(%t, %q)",
    )
    assert count == 64 * 256  # only the transposed operand
    assert span == 64 + 63 * 1024


def test_layout_alone_may_transpose() -> None:
    """The same dimensions, stored column first: no transpose instruction, but the same strides."""
    count, _ = reads("%p = f32[64,256]{0,1} parameter(0)", "ROOT %r = f32[64,256]{1,0} negate(%p)")
    assert count == 64 * 256
    assert reads("%p = f32[64,256]{0,1} parameter(0)", "ROOT %r = f32[64,256]{0,1} negate(%p)") == (
        0.0,
        0.0,
    )


@pytest.mark.parametrize(("dimension", "out", "strided"), [(0, 256, 64 * 256), (1, 64, 0)])
def test_reduction_over_the_slow_dimension_is_strided(
    dimension: int, out: int, strided: int
) -> None:
    count, _ = reads(
        "%p = f32[64,256]{1,0} parameter(0)",
        "%zero = f32[] constant(0)",
        f"ROOT %r = f32[{out}]{{0}} reduce(%p, %zero), dimensions={{{dimension}}}, to_apply=%add",
    )
    assert count == strided


def test_broadcast_operand_stands_still() -> None:
    assert reads(
        "%p = f32[64]{0} parameter(0)",
        "%b = f32[64,256]{1,0} broadcast(%p), dimensions={0}",
        "ROOT %r = f32[64,256]{1,0} negate(%b)",
    ) == (0.0, 0.0)


def test_narrow_transpose_stays_within_lines() -> None:
    """Columns of a 64 x 4 matrix lie 16 bytes apart: four steps share a line, which is no strided
    read.
    """
    assert reads(
        "%p = f32[64,4]{1,0} parameter(0)",
        "%t = f32[4,64]{1,0} transpose(%p), dimensions={1,0}",
        "ROOT %r = f32[4,64]{1,0} negate(%t)",
    ) == (0.0, 0.0)


def test_concatenated_operand_is_read_for_its_share() -> None:
    count, _ = reads(
        "%p = f32[64,256]{1,0} parameter(0)",
        "%q = f32[256,192]{1,0} parameter(1)",
        "%t = f32[256,64]{1,0} transpose(%p), dimensions={1,0}",
        "ROOT %r = f32[256,256]{1,0} concatenate(%t, %q), dimensions={1}",
    )
    assert count == pytest.approx(64 * 256)


def test_bitcast_keeps_the_distance_in_memory() -> None:
    """f32[64,256] seen as f32[64,16,16], then its outer dimensions swapped with the last."""
    count, _ = reads(
        "%p = f32[64,256]{1,0} parameter(0)",
        "%b = f32[64,16,16]{2,1,0} bitcast(%p)",
        "%t = f32[16,16,64]{2,1,0} transpose(%b), dimensions={2,1,0}",
        "ROOT %r = f32[16,16,64]{2,1,0} negate(%t)",
    )
    assert count == 64 * 256
