"""What stands before the first layer and behind the last: embedding of words or patches, final
norm, logits and loss.

Tensor parallelism divides the vocabulary: a rank looks up the words it has, and the sum over ranks
is each token's vector; a loss needs the largest logit, the target's and the sum of exponentials of
each token over all ranks (Megatron's vocab-parallel cross-entropy).
"""

from __future__ import annotations

import dataclasses

from hybridperf.ops import Gather, OpCall, Reduction, ScatterAdd, Softmax
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.passes import Piece, Step, Steps

_WIDE = "fp32"  # a loss' number format
# Megatron's on a number per token: targets masked and shifted, logarithm, difference, mask, sums,
# mean
LOSS_KERNELS = 10
LOSS_BACKWARD_KERNELS = 4  # and back: mean, mask, the target's share


def embedding(config: TransformerConfig) -> Piece:
    """Up to the first layer; of two stacks both of theirs."""
    s, kernels = config.shape, config.kernels
    if s.family == "vit":
        patches = config.layout.micro_batch * (s.seq - 1)
        found = kernels.linear("patches", patches, s.channels * s.patch**2, s.hidden, bias=True)
        return (
            found
            + kernels.moved("class tokens", config.tokens, s.hidden)
            + _added(config, "positions", config.tokens, s.seq)
        )
    found = _embedded(config, config.tokens)
    return found + _embedded(config, config.decoder_tokens) if s.decoder_layers else found


def _embedded(config: TransformerConfig, tokens: float) -> Piece:
    s, kernels = config.shape, config.kernels
    found = _looked_up(kernels, "words", tokens, s.hidden, config.padded_vocab, split=True)
    if s.positions == "learned":
        found += _added(config, "positions", tokens, s.max_positions or s.seq)
    if s.token_types:
        found += _added(config, "token types", tokens, s.token_types)
    if s.embedding_norm:
        found += kernels.norm("embedding norm", s.norm, tokens, s.hidden)
    if config.dropout:
        dropped = kernels.loop(
            "embedding dropout", tokens, s.hidden, like="mulu", moved=2 + kernels.mask
        )
        found += Piece(
            (dropped,), (dataclasses.replace(dropped, name="embedding dropout gradient"),)
        )
    return found


def _added(config: TransformerConfig, name: str, tokens: float, rows: int) -> Piece:
    """A table of one vector per position, looked up and added."""
    kernels, h = config.kernels, config.shape.hidden
    return _looked_up(kernels, name, tokens, h, rows) + Piece(
        (kernels.loop(f"{name} added", tokens, h),)
    )


def _looked_up(
    kernels: Kernels, name: str, tokens: float, cols: float, rows: float, split: bool = False
) -> Piece:
    """Rows of a table; backward the table's gradient, of which most rows are zero."""
    numbers = (kernels.dtype, float(tokens), float(cols), float(rows))
    tensor, over = (("vocab",), "rows") if split else ((), "")
    forward = Step(OpCall(Gather(*numbers)), "memory", name, tensor=tensor, tokens="rows")
    zeros = kernels.loop(
        f"{name} gradient zeroed",
        rows,
        cols,
        like="fill",
        tensor=over,
        tokens="",
        weight_gradient=True,
    )
    back = Step(
        OpCall(ScatterAdd(*numbers)),
        "memory",
        f"{name} gradient",
        tensor=tensor,
        tokens="rows",
        weight_gradient=True,
    )
    return Piece((forward,), (zeros, back, *kernels.keep(name, rows, cols, over)))


def head(config: TransformerConfig) -> Piece:
    """From the last layer to the loss."""
    s, kernels, tokens = config.shape, config.kernels, config.decoder_tokens
    batch = float(config.layout.micro_batch)
    found = Piece() if s.family == "bert" else kernels.norm("final norm", s.norm, tokens, s.hidden)
    if s.pooler:
        found += kernels.linear("pooler", batch, s.hidden, s.hidden, bias=True)
    if s.head == "none":
        return found
    if s.head == "classes":
        return (
            found
            + kernels.linear("classes", batch, s.hidden, s.vocab, bias=True)
            + _plain_loss(kernels, batch, s.vocab)
        )
    if s.head == "mlm":
        found += kernels.linear("transform", tokens, s.hidden, s.hidden, bias=True)
        gelu = kernels.loop("transform gelu", tokens, s.hidden, like="gelu")
        found += Piece(
            (gelu,),
            (kernels.loop("transform gelu gradient", tokens, s.hidden, like="gelu", moved=3),),
        )
        found += kernels.norm("transform norm", s.norm, tokens, s.hidden)
    vocab = config.padded_vocab
    return (
        found
        + kernels.linear("logits", tokens, s.hidden, vocab, split="outputs")
        + loss(config, tokens, vocab)
    )


def loss(config: TransformerConfig, tokens: float, vocab: float) -> Piece:
    """Cross-entropy of logits tokens x vocab."""
    kernels = config.kernels
    if config.fused_loss:  # logits read and their gradients written in place; backward scales them
        once = Step(
            OpCall(Softmax(kernels.dtype, float(tokens), float(vocab))),
            "memory",
            "loss",
            tensor=("cols",),
            tokens="rows",
        )
        return Piece((once,), (_rows(kernels, "loss gradient", tokens, vocab, moved=2.0),))
    if config.framework != "megatron":
        return _plain_loss(kernels, tokens, vocab, tensor=True)
    wide, widened, narrowed = _casts(kernels, tokens, vocab, tensor=True)

    def over(name: str) -> Step:
        op = Reduction(_WIDE, float(tokens), float(vocab))
        return Step(OpCall(op), "memory", name, tensor=("cols",), tokens="rows")

    targets = Step(
        OpCall(Gather(_WIDE, float(tokens), 1.0, float(vocab))),
        "memory",
        "target logits",
        tensor=("vocab",),
        tokens="rows",
    )
    return Piece(
        (
            *widened,
            over("largest logit"),
            _rows(wide, "logits shifted", tokens, vocab, moved=2.0),
            targets,
            _rows(wide, "exponentials", tokens, vocab, like="exp"),
            over("sum of exponentials"),
            _rows(wide, "probabilities", tokens, vocab, moved=2.0),
            _small(wide, "loss", tokens, LOSS_KERNELS),
        ),
        (
            _small(wide, "loss gradient of tokens", tokens, LOSS_BACKWARD_KERNELS),
            _rows(wide, "loss gradient", tokens, vocab, moved=2.0),
            *narrowed,
        ),
    )


def _plain_loss(kernels: Kernels, tokens: float, vocab: float, tensor: bool = False) -> Piece:
    """Cast to fp32, log-softmax, loss; and back."""
    wide, widened, narrowed = _casts(kernels, tokens, vocab, tensor)
    op, split = Softmax(_WIDE, float(tokens), float(vocab)), ("cols",) if tensor else ()
    log_softmax = Step(OpCall(op), "memory", "log-softmax", tensor=split, tokens="rows")
    return Piece(
        (*widened, log_softmax, _small(wide, "loss", tokens, 1)),
        (_rows(wide, "log-softmax gradient", tokens, vocab, moved=3.0, tensor=tensor), *narrowed),
    )


def _casts(
    kernels: Kernels, tokens: float, vocab: float, tensor: bool
) -> tuple[Kernels, Steps, Steps]:
    """Kernels of a loss' number format, logits cast to it, and their gradients cast back; none
    where all is of that format.
    """
    wide = dataclasses.replace(kernels, dtype=_WIDE)
    share = kernels.element_bytes / wide.element_bytes
    if share == 1:
        return wide, (), ()
    widened = _rows(
        wide, "logits in fp32", tokens, vocab, like="cast", moved=1 + share, tensor=tensor
    )
    return (
        wide,
        (widened,),
        (
            _rows(
                kernels,
                "loss gradient narrowed",
                tokens,
                vocab,
                like="cast",
                moved=1 + 1 / share,
                tensor=tensor,
            ),
        ),
    )


def _small(kernels: Kernels, name: str, tokens: float, launched: int) -> Step:
    """Kernels on a number per token."""
    return dataclasses.replace(kernels.loop(name, 1.0, tokens, tokens="cols"), kernels=launched)


def _rows(
    kernels: Kernels,
    name: str,
    tokens: float,
    vocab: float,
    *,
    like: str = "mulu",
    moved: float | None = None,
    tensor: bool = True,
) -> Step:
    return kernels.loop(
        name, tokens, vocab, like=like, moved=moved, tensor="cols" if tensor else ""
    )
