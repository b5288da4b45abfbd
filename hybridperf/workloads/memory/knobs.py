"""What counting cannot know about memory, as few numbers: fitted to measured peaks."""

from __future__ import annotations

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemoryKnobs:
    """Corrections of `hp.memory`: factors on counted bytes, and bytes that cannot be counted."""

    weights: float = 1.0  # factor on bytes of weights
    gradients: float = 1.0  # factor on bytes of gradients
    optimizer: float = 1.0  # factor on bytes of optimizer state
    hidden: float = 1.0  # factor on activations as wide as the hidden state or the heads
    ffn: float = 1.0  # factor on activations as wide as the MLP
    # factor on what attention keeps per pair of tokens, or per token where it is fused
    scores: float = 1.0
    workspace: float = 1.0  # factor on what lives only while one layer is computed
    loss_bytes: float = 4.0  # bytes per logit, next to the logit itself: the loss's copy in fp32
    # bytes per logit kept from the micro-batch before, where no pipeline stage runs in between
    stale_bytes: float = 0.0
    # tensors of the hidden width that the embedding keeps per micro-batch, whole on every rank
    embedding: float = 0.0
    head: float = 0.0  # tensors of the hidden width that the LM head keeps, likewise
    fixed_bytes: float = 1.0e9  # bytes of driver, libraries and communicators; assumed


# Knob: standard deviation before any measured peak is seen, of its logarithm, or of itself where
# the default is zero. Counts of states are near-certain; frameworks differ by a tensor or two per
# layer; the fixed part is known to a factor of two.
MEMORY_PRIORS = {
    "weights": 0.05, "gradients": 0.1, "optimizer": 0.05, "hidden": 0.3, "ffn": 0.3, "scores": 0.3,
    "workspace": 0.5, "loss_bytes": 0.4, "stale_bytes": 4.0, "embedding": 1.0, "head": 4.0,
    "fixed_bytes": 0.7,
}  # fmt: skip
