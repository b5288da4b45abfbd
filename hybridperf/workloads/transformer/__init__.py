"""Transformers: what a model is (`shape`, `zoo`), how it is spread over ranks (`layout`, `rules`,
`groups`, `stages`), what a rank runs of its layers, embedding and LM head kernel by kernel
(`config`, `parts`), and a whole step of it as a graph (`step`).
"""

from hybridperf.workloads.transformer.layout import Layout, Layouts
from hybridperf.workloads.transformer.shape import Diffusion, Latent, Scan, TransformerShape
from hybridperf.workloads.transformer.zoo import load_shape, shape_names

__all__ = [
    "Diffusion", "Latent", "Layout", "Layouts", "Scan", "TransformerShape", "load_shape",
    "shape_names",
]  # fmt: skip
