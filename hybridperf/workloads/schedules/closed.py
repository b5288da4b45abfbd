"""Seconds of a pipelined step without its graph, for columns of layouts at once.

With stages that are all alike a schedule's longest path is known (p workers, m micro-batches, F and
B seconds of one worker's forward and backward of one micro-batch, v chunks, W the part of B that
makes the weights' gradients):

    GPipe, 1F1B    (m + p - 1) (F + B)                       Huang et al. 2019; Narayanan et al.
                   2021
    interleaved    (m + (p - 1) / v) (F + B)                 Narayanan et al. 2021
    ZB-H1          m (F + B) + (p - 1) (F + B - 2 W)         Qi et al. 2023; with W above F or B - W
                   see `_zero_bubble_s`
    Chimera        D F + (m + D - 2) B with B >= F           Li and Hoefler 2021; with m > D or F >
                   B see `_chimera_s`

These equal the graph, whose order each of them belongs to; with stages that differ they do not
(`steps/pipelines.py` says what then). All functions take NumPy columns and JAX's traced numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.namespace import array_module, floats
from hybridperf.workloads.schedules.names import check_columns, known_name


def closed_form_s(
    name: str,
    workers: Any,
    micro_batches: Any,
    forward_s: Any,
    backward_s: Any,
    *,
    chunks: Any = 1,
    weight_s: Any = 0.0,
    send_s: Any = 0.0,
) -> Any:
    """Seconds of a step whose stages are all alike, transfers beside the computations; arrays
    broadcast.

    `forward_s`, `backward_s`: one micro-batch on one worker, all its chunks, the whole backward.
    `weight_s`: the part of it that makes the weights' gradients, used where a schedule puts it off.
    `send_s`: one transfer to the next worker, no longer than what either computes meanwhile; known
    for GPipe and 1F1B alone, others refuse it.
    """
    check_columns(name, workers, micro_batches)
    p, m = floats(workers), floats(micro_batches)
    both_s = floats(forward_s) + backward_s
    if name in ("gpipe", "1f1b"):
        return (m + p - 1) * both_s + send_s * (
            2 * (p - 1) if name == "gpipe" else _sends_of_1f1b(p, m)
        )
    if not _nothing(send_s):
        raise InputError(
            f"schedule {name!r} has no closed form with transfers; use its graph, or add send_s to"
            " the stages' seconds"
        )
    if name == "interleaved":
        return (m + (p - 1) / chunks) * both_s
    if name == "chimera":
        return _chimera_s(p, m, floats(forward_s), backward_s)
    return _zero_bubble_s(p, m, floats(forward_s), backward_s, weight_s)


def bubble_over_total(total_s: Any, busy_s: Any) -> Any:
    """Share of the step in which a worker waits (Chimera's definition): 1 - busy / total."""
    return 1 - floats(busy_s) / total_s


def bubble_over_ideal(total_s: Any, busy_s: Any) -> Any:
    """Waiting over working (Megatron's definition): total / busy - 1, larger than
    `bubble_over_total`.
    """
    return floats(total_s) / busy_s - 1


def in_flight(name: str, worker: Any, workers: Any, micro_batches: Any, *, chunks: Any = 1) -> Any:
    """Micro-batches whose activations a worker keeps at the worst moment, in units of all its
    layers; arrays broadcast.

    Interleaved: p (1 + (p - 1) / (p v)) on the first worker. Chimera: both pipes together, D / 2 +
    1 on the outer workers up to D on those in the middle, D on all with more than D micro-batches.
    ZB-H1: until the weights' gradients are made.
    """
    w, p, m = floats(worker), floats(workers), floats(micro_batches)
    module = array_module(worker, workers, micro_batches, chunks)
    if known_name(name) == "gpipe":
        return m + 0 * (w + p)
    if name == "1f1b":
        return module.minimum(p - w, m)
    if name == "interleaved":
        v = floats(chunks)
        ahead = module.where(v > 1, 2 * (p - 1 - w) + (v - 1) * p + 1, p - w)
        return module.minimum(ahead, m * v) / v
    if name == "chimera":
        one_unit = module.minimum(p - w, m / 2) + module.minimum(w + 1, m / 2)
        return module.where(m > p, p, one_unit)
    return module.minimum(p, m) + 0 * w


def _zero_bubble_s(p: Any, m: Any, forward_s: Any, backward_s: Any, weight_s: Any) -> Any:
    """The longest of three paths, each down to the last worker and up again.

    All F on the last worker, all W on it or where they are put off no longer; all F and W on the
    first; or no W but those of the last worker's steady state and the very last one.
    """
    module = array_module(p, m, forward_s, backward_s, weight_s)
    input_s, turns, longer = backward_s - weight_s, m + p - 1, module.maximum(m, p)
    below_s = turns * forward_s + longer * input_s + m * weight_s
    above_s = longer * forward_s + turns * input_s + m * weight_s
    through_s = turns * (forward_s + input_s) + module.maximum(m - p + 1, 1) * weight_s
    return module.maximum(module.maximum(below_s, above_s), through_s)


def _chimera_s(d: Any, m: Any, forward_s: Any, backward_s: Any) -> Any:
    """Up to D micro-batches: D (F + B) + (m - 2) max(F, B).

    Units of D fit into each other without a gap if F = B. Else each further one has D - 2 gaps of B
    - F, or half as many of F - B where forwards are longer, and once up to F of them is filled.
    Read off the graphs of D = 2 to 16, and tested against them.
    """
    module = array_module(d, m, forward_s, backward_s)
    longer_back_s, longer_there_s = (
        module.maximum(backward_s - forward_s, 0.0),
        module.maximum(forward_s - backward_s, 0.0),
    )
    first = module.minimum(m, d)
    further = (m - first) / d
    unit_s = d * (forward_s + backward_s) + (d - 2) * (longer_back_s + longer_there_s / 2)
    filled_s = module.minimum(forward_s, module.floor(d / 4) * longer_back_s) * (further > 0)
    return (
        d * (forward_s + backward_s)
        + (first - 2) * module.maximum(forward_s, backward_s)
        + further * unit_s
        - filled_s
    )


def _sends_of_1f1b(p: Any, m: Any) -> Any:
    """Transfers on the longest path.

    A round trip of the pipeline takes 2 (p - 1) of them and gives its worker the turn of the
    micro-batch p later; r micro-batches that are left at the end have a round trip over r - 1
    links.
    """
    module = array_module(p, m)
    trips = module.floor((m - 1) / p)
    left = m - 1 - trips * p
    return 2 * ((p - 1) * (1 + trips) + module.maximum(left - 1, 0))


def _nothing(seconds: Any) -> bool:
    """Whether transfers are known to take no time: what JAX traces is not."""
    return array_module(seconds) is np and not np.any(seconds)
