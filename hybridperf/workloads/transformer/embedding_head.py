"""The embedding of words or patches before the first layer, and the LM head behind the last: final
norm, logits and loss.

Tensor parallelism divides the vocabulary: a rank looks up the words it has, and the sum over ranks
is each token's vector; a loss needs the largest logit, the target's and the sum of exponentials of
each token over all ranks (Megatron's vocab-parallel cross-entropy).
"""

from __future__ import annotations

import dataclasses

from hybridperf.ops import Gather, OpCall, Reduction, ScatterAdd, Softmax
from hybridperf.workloads.transformer import diffusion
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps

_WIDE = "fp32"  # a loss' number format
# Megatron's on a number per token: targets masked and shifted, logarithm, difference, mask, sums,
# mean
LOSS_KERNELS = 10
LOSS_BACKWARD_KERNELS = 4  # and back: mean, mask, the target's share


def embedding(config: TransformerConfig) -> Passes:
    """Up to the first layer; of two stacks both of theirs."""
    s, kernels = config.shape, config.kernels
    if s.diffusion:
        return diffusion.embedding(config)
    if s.family == "vit":
        patches = config.layout.micro_batch * (s.seq - 1)
        found = kernels.linear("patches", patches, s.channels * s.patch**2, s.hidden, bias=True)
        found += kernels.moved("class tokens", config.tokens, s.hidden)
        return found + _added(config, "positions", config.tokens, s.seq)
    found = _embedded(config, config.tokens)
    return found + _embedded(config, config.decoder_tokens) if s.decoder_layers else found


def _embedded(config: TransformerConfig, tokens: float) -> Passes:
    s, kernels = config.shape, config.kernels
    found = _looked_up(kernels, "words", tokens, s.hidden, config.padded_vocab, split=True)
    if s.positions == "learned":
        found += _added(config, "positions", tokens, s.max_positions or s.seq)
    if s.token_types:
        found += _added(config, "token types", tokens, s.token_types)
    if s.embedding_norm:
        found += kernels.norm("embedding norm", s.norm, tokens, s.hidden)
    if config.dropout:
        moved = 2 + kernels.mask
        dropped = kernels.loop("embedding dropout", tokens, s.hidden, like="mulu", moved=moved)
        back = dataclasses.replace(dropped, name="embedding dropout gradient")
        found += Passes((dropped,), (back,))
    return found


def _added(config: TransformerConfig, name: str, tokens: float, rows: int) -> Passes:
    """A table of one vector per position, looked up and added."""
    kernels, h = config.kernels, config.shape.hidden
    added = Passes((kernels.loop(f"{name} added", tokens, h),))
    return _looked_up(kernels, name, tokens, h, rows) + added


def _looked_up(
    kernels: Kernels, name: str, tokens: float, cols: float, rows: float, split: bool = False
) -> Passes:
    """Rows of a table; backward the table's gradient, of which most rows are zero."""
    numbers = (kernels.dtype, float(tokens), float(cols), float(rows))
    tensor, over = (("vocab",), "rows") if split else ((), "")
    forward = PassStep(OpCall(Gather(*numbers)), "memory", name, tensor=tensor, tokens="rows")
    zeros = kernels.loop(f"{name} gradient zeroed", rows, cols, like="fill", tensor=over, tokens="")
    back = dataclasses.replace(forward, call=OpCall(ScatterAdd(*numbers)), name=f"{name} gradient")
    gradient = tuple(dataclasses.replace(step, weight_gradient=True) for step in (zeros, back))
    return Passes((forward,), (*gradient, *kernels.keep(name, rows, cols, over)))


def head(config: TransformerConfig) -> Passes:
    """From the last layer to the loss."""
    s, kernels, tokens = config.shape, config.kernels, config.decoder_tokens
    batch = float(config.layout.micro_batch)
    if s.diffusion:
        return diffusion.head(config)
    found = Passes() if s.norms_last else kernels.norm("final norm", s.norm, tokens, s.hidden)
    if s.pooler:
        found += kernels.linear("pooler", batch, s.hidden, s.hidden, bias=True)
    if s.head == "none":
        return found
    if s.head == "classes":
        found += kernels.linear("classes", batch, s.hidden, s.vocab, bias=True)
        return found + _plain_loss(kernels, batch, s.vocab)
    if not does(config.framework, "logits_of_all"):
        tokens = tokens * s.predicted_share
    if s.head == "mlm":
        found += kernels.linear("transform", tokens, s.hidden, s.hidden, bias=True)
        gelu = kernels.loop("transform gelu", tokens, s.hidden, like="gelu")
        back = kernels.loop("transform gelu gradient", tokens, s.hidden, like="gelu", moved=3)
        found += Passes((gelu,), (back,))
        found += kernels.norm("transform norm", s.norm, tokens, s.hidden)
    vocab = config.padded_vocab
    found += kernels.linear("logits", tokens, s.hidden, vocab, split="outputs")
    return found + loss(config, tokens, vocab)


def loss(config: TransformerConfig, tokens: float, vocab: float) -> Passes:
    """Cross-entropy of logits tokens x vocab."""
    kernels = config.kernels
    if config.fused_loss:  # logits read and their gradients written in place; backward scales them
        op = Softmax(kernels.dtype, float(tokens), float(vocab))
        once = PassStep(OpCall(op), "memory", "loss", tensor=("cols",), tokens="rows")
        return Passes((once,), (_rows(kernels, "loss gradient", tokens, vocab, moved=2.0),))
    if not does(config.framework, "loss_by_kernels"):
        return _plain_loss(kernels, tokens, vocab, tensor=True)
    wide, widened, narrowed = _casts(kernels, tokens, vocab, tensor=True)

    def over(name: str, op: Reduction | Gather, field: str) -> PassStep:
        return PassStep(OpCall(op), "memory", name, tensor=(field,), tokens="rows")

    reduction = Reduction(_WIDE, float(tokens), float(vocab))
    targets = over("target logits", Gather(_WIDE, float(tokens), 1.0, float(vocab)), "vocab")
    forward = (
        *widened,
        over("largest logit", reduction, "cols"),
        _rows(wide, "logits shifted", tokens, vocab, moved=2.0),
        targets,
        _rows(wide, "exponentials", tokens, vocab, like="exp"),
        over("sum of exponentials", reduction, "cols"),
        _rows(wide, "probabilities", tokens, vocab, moved=2.0),
        _small(wide, "loss", tokens, LOSS_KERNELS),
    )
    small = _small(wide, "loss gradient of tokens", tokens, LOSS_BACKWARD_KERNELS)
    gradient = _rows(wide, "loss gradient", tokens, vocab, moved=2.0)
    return Passes(forward, (small, gradient, *narrowed))


def _plain_loss(kernels: Kernels, tokens: float, vocab: float, tensor: bool = False) -> Passes:
    """Cast to fp32, log-softmax, loss; and back."""
    wide, widened, narrowed = _casts(kernels, tokens, vocab, tensor)
    op, split = Softmax(_WIDE, float(tokens), float(vocab)), ("cols",) if tensor else ()
    log_softmax = PassStep(OpCall(op), "memory", "log-softmax", tensor=split, tokens="rows")
    back = _rows(wide, "log-softmax gradient", tokens, vocab, moved=3.0, tensor=tensor)
    return Passes((*widened, log_softmax, _small(wide, "loss", tokens, 1)), (back, *narrowed))


def _casts(
    kernels: Kernels, tokens: float, vocab: float, tensor: bool
) -> tuple[Kernels, Steps, Steps]:
    """Kernels of a loss' number format, logits cast to it, and their gradients cast back."""
    wide = dataclasses.replace(kernels, dtype=_WIDE)
    share = kernels.element_bytes / wide.element_bytes
    if share == 1:
        return wide, (), ()

    def cast(to: Kernels, name: str, moved: float) -> Steps:
        return (_rows(to, name, tokens, vocab, like="cast", moved=moved, tensor=tensor),)

    widened = cast(wide, "logits in fp32", 1 + share)
    return wide, widened, cast(kernels, "loss gradient narrowed", 1 + 1 / share)


def _small(kernels: Kernels, name: str, tokens: float, launched: int) -> PassStep:
    """Kernels on a number per token."""
    return dataclasses.replace(kernels.loop(name, 1.0, tokens, tokens="cols"), kernels=launched)


def _rows(
    kernels: Kernels, name: str, tokens: float, vocab: float, *, like: str = "mulu",
    moved: float | None = None, tensor: bool = True,
) -> PassStep:  # fmt: skip
    over = "cols" if tensor else ""
    return kernels.loop(name, tokens, vocab, like=like, moved=moved, tensor=over)
