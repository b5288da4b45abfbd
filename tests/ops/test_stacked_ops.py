"""Ops that differ in sizes alone are priced together as they are priced one by one."""

import dataclasses

import numpy as np

from hybridperf.model import load_model
from hybridperf.ops import BatchedGemm, Elementwise, Gemm, Norm, OpCall, PrefillAttention
from hybridperf.ops.table import alike

OPS = [
    Gemm(m=512, n=1024, k=1024, dtype="bf16"),
    Gemm(m=64, n=4096, k=1024, dtype="bf16"),
    Gemm(m=64, n=4096, k=1024, dtype="fp32"),
    BatchedGemm(batch=8, m=128, n=128, k=64, dtype="bf16"),
    Gemm(m=1, n=1, k=8, dtype="bf16"),
]


def test_places_and_sizes_are_kept() -> None:
    found = list(alike(OPS))
    assert sorted(place for at, _, _ in found for place in at) == list(range(len(OPS)))
    for at, together, name in found:
        for row, place in enumerate(at):
            sizes = {
                size: float(np.asarray(getattr(together, size))[row])
                for size in type(together).dimensions()
            }
            assert dataclasses.replace(OPS[place], **sizes) == OPS[place]
            assert name in ("gemm", "bmm", "batched_gemm", "matmul")


def test_together_and_one_by_one_take_the_same() -> None:
    model = load_model("h100_sxm")
    calls = [OpCall(op, issued_apart=True) for op in OPS]
    calls += [
        OpCall(Elementwise(rows=4096, cols=1024, dtype="bf16"), reuse_bytes=size)
        for size in (None, 1e6, 1e9)
    ]
    calls += [
        OpCall(Norm(rows=64, cols=4096, dtype="bf16")),
        OpCall(Norm(rows=8, cols=4096, dtype="bf16"), inlined=True),
    ]
    calls += [
        OpCall(
            PrefillAttention(
                batch=1, q_len=seq, kv_len=seq, heads=16, kv_heads=16, head_dim=128, dtype="bf16"
            )
        )
        for seq in (512, 2048)
    ]
    together = model.op_seconds(model.table(calls))
    alone = [float(model.op_seconds(model.table([call]))[0]) for call in calls]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
