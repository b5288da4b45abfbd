"""A layout in a line."""

from __future__ import annotations

from hybridperf.workloads.transformer.layout import Layout

_NAMES = {
    "micro_batch": "micro-batch",
    "sequence_parallel": "sequence parallel",
    "expert_tp": "expert tp",
}
_BY_CHUNKS = ("1f1b", "interleaved")  # what vp says
LEGEND = (
    "layout: how many ranks share what: tp matrices, cp the sequence, pp layers (in vp chunks a"
    " stage), dp samples, ep experts; ZeRO-1 shards optimizer states, -2 gradients as well, -3"
    " weights as well, over all ranks that could hold copies or over as many as given; 16 x"
    " micro-batch 2: a rank takes 2 samples 16 times a step",
    "rank order: which ranks are neighbours; the first one's lie side by side in a node, the"
    " last one's farthest apart",
)


def counted(count: int, noun: str, nouns: str = "") -> str:
    """`1 layout`, `4,110 layouts`; `nouns`: of several, where no s does."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or f'{noun}s'}"


def layout_words(layout: Layout) -> str:
    """A layout in a line; what is one or off is left out."""
    degrees = {name: getattr(layout, name) for name in ("tp", "cp", "pp", "vp", "dp", "ep")}
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    words += ["sequence parallel"] if layout.sequence_parallel else []
    words += [f"expert tp {layout.expert_tp}"] if layout.expert_tp is not None else []
    if layout.zero:
        over = f" over {layout.shard_ranks} ranks" if layout.shard_ranks else ""
        words.append(f"ZeRO-{layout.zero}{over}")
    words += [f"schedule {layout.schedule}"] if layout.schedule not in _BY_CHUNKS else []
    words.append(f"{layout.accumulation} x micro-batch {layout.micro_batch}")
    words += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    return ", ".join(words)


def field_words(layout: Layout, name: str) -> str:
    """One field of a layout, as `layout_words` has it; what is off is named, too."""
    value = getattr(layout, name)
    if name == "zero":
        return f"ZeRO-{value}" if value else "no ZeRO"
    if name == "shard_ranks":
        return f"ZeRO over {value} ranks" if value else "ZeRO over all its ranks"
    if name == "accumulation":
        return counted(value, "micro-batch", "micro-batches")
    if isinstance(value, bool) or name == "sequence_parallel":
        return f"{_NAMES.get(name, name)} {'on' if value else 'off'}"
    return f"{_NAMES.get(name, name)} {'as tp' if value is None else value}"
