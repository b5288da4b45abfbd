"""A layout in a line."""

from __future__ import annotations

from hybridperf.workloads.transformer.layout import Layout


def layout_words(layout: Layout) -> str:
    """What is one or off is left out."""
    said = [f"{name} {getattr(layout, name)}" for name in ("tp", "cp", "pp", "vp", "dp", "ep") if getattr(layout, name) > 1]
    said += ["sequence parallel"] if layout.sequence_parallel else []
    said += [f"expert tp {layout.expert_tp}"] if layout.expert_tp is not None else []
    if layout.zero:
        said.append(f"ZeRO-{layout.zero}" + (f" over {layout.shard_ranks}" if layout.shard_ranks else ""))
    said.append(f"{layout.accumulation} x micro-batch {layout.micro_batch}")
    said += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    return ", ".join(said)
