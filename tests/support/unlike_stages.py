"""Seconds of a step whose stages differ, by (m - 1) max + sum: what graphs and the composition of
steps are held against.

`forward_s, backward_s` [p]; every stage but the last sends activations on and every one but the
first gradients back, `send_s` each, and is held up by them. Identical jobs that pass machines in a
row take sum + (m - 1) max.
"""

import numpy as np


def stage_max_s(forward_s, backward_s, micro_batches, *, chunks=1, send_s=0.0):
    """Forward and backward taken as one job. Of the graph with `held` transfers this is

        GPipe   a lower bound; exact where one stage has both the longest forward and the longest
                backward
        1F1B    an upper bound where one stage has both, which uniform stages have, and exact where
                that is the last stage or, without transfers, where all are alike; else neither:
                forwards and backwards that are long in different stages can take longer

    With several chunks, m max + (sum - max) / v over the workers' seconds: exact for uniform stages
    without transfers, else an estimate.
    """
    stage_s = sum(_with_transfers(forward_s, backward_s, send_s * chunks))
    return micro_batches * stage_s.max() + (stage_s.sum() - stage_s.max()) / chunks


def gpipe_s(forward_s, backward_s, micro_batches, *, send_s=0.0):
    """Once forward and once backward: exact for GPipe, and 1F1B takes no longer."""
    return sum(
        (micro_batches - 1) * one.max() + one.sum()
        for one in _with_transfers(forward_s, backward_s, send_s)
    )


def _with_transfers(forward_s, backward_s, send_s):
    """Seconds of forwards and backwards [p], each with the transfer that follows it."""
    stage = np.arange(len(forward_s))
    return forward_s + send_s * (stage < len(stage) - 1), backward_s + send_s * (stage > 0)
