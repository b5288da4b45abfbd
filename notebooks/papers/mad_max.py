"""MAD-Max's published case (Hsia et al., ISCA 2024): DLRM-A on ZionEX, by the paper's own arithmetic
and by our prices of the same calls.

A GPU computes in one queue and sends in another. Tables are looked up, their pooled rows exchanged,
ten matrices run before the interaction and ten behind it; backward the other way round, each
matrix's gradients all-reduced as they are made, the tables' update behind their gradients' exchange.

The paper's arithmetic, at the efficiencies of its artifact:

    matrices      flops / (0.705 peak);  lookups: bytes looked up / (0.836 memory bandwidth)
    all-reduce    bytes / B;  over several nodes B = 0.2746 inside + 0.7254 across, a fit to ZionEX
    all-to-all    2 (bytes looked up by a GPU) / GPUs / B, across nodes where there are several
"""

import dataclasses
from collections.abc import Sequence

import pandas as pd

import hybridperf as hp

SAMPLES = 512  # of a GPU
WIDTH, BEFORE, BEHIND = 3994, 10, 10  # of the square matrices; their number
TABLES, ROWS, DIM, POOLING = 4096, 2.08e6, 94, 15
LOOKED_UP_BYTES = SAMPLES * TABLES * DIM * POOLING * 2.0  # of a GPU's samples, in fp16
POOLED_BYTES = LOOKED_UP_BYTES / POOLING
MATRIX_BYTES = 4.0 * WIDTH**2
# MAD-Max does not say which rows are looked up: these are frequencies by rank of tables that its
# authors' company published (facebookresearch/dlrm_datasets, 2021)
ACCESS = hp.Zipf(0.89, 156.0)


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Of one matrix forward and backward, all tables looked up and updated, one message each."""

    forward: float
    backward: float
    lookup: float
    update: float
    exchange: float
    reduce: float

    @property
    def parts(self) -> dict[str, float]:
        """Of an iteration: matrices, lookups, all-to-all, all-reduce."""
        count = BEFORE + BEHIND
        return {
            "matrices": count * (self.forward + self.backward),
            "lookups": self.lookup + self.update,
            "all-to-all": 2 * self.exchange,
            "all-reduce": count * self.reduce,
        }

    @property
    def iteration(self) -> float:
        """Until both queues are done."""
        pooled_s = self.lookup + self.exchange
        computed_s = max(self.lookup + BEFORE * self.forward, pooled_s) + BEHIND * self.forward
        sent_s = pooled_s
        for at in range(BEHIND + BEFORE):
            if at == BEHIND:  # nobody else reads the tables: their gradients go out
                sent_s = max(sent_s, computed_s) + self.exchange
                exchanged_s = sent_s
            computed_s += self.backward
            sent_s = max(sent_s, computed_s) + self.reduce
        return max(max(computed_s, exchanged_s) + self.update, sent_s)

    @property
    def exposed_share(self) -> float:
        """Of all communication, what no computation hides."""
        parts = self.parts
        computed_s = parts["matrices"] + parts["lookups"]
        return (self.iteration - computed_s) / (parts["all-to-all"] + parts["all-reduce"])


def published(gpus: int) -> Seconds:
    """By the paper's arithmetic; nodes of 8 A100-40GB, 12 NVLinks and 8 ports of 200 Gb/s each."""
    inside, across = 12 * 50e9 / 2 * 0.6667, 8 * 25e9 / 2 * 0.56 / 8
    several = gpus > 8
    reduced = 0.2746 * inside + (1 - 0.2746) * across if several else inside
    forward_s = 2 * WIDTH**2 * SAMPLES / (156e12 * 0.705)
    lookup_s = LOOKED_UP_BYTES / (1555e9 * 0.836)
    exchange_s = 2 * LOOKED_UP_BYTES / gpus / (across if several else inside)
    return Seconds(forward_s, 2 * forward_s, lookup_s, lookup_s, exchange_s, MATRIX_BYTES / reduced)


def priced(gpus: int) -> Seconds:
    """By our prices: the products, a GPU's share of the tables for all samples, and messages as they
    travel: the pooled rows, in place of those looked up.
    """
    nodes = max(gpus // 8, 1)
    machine, _ = hp.fit(None, hp.load_device("a100_sxm4_40g"))
    table = hp.Table("tables", ROWS, DIM, pooling=POOLING, dtype="fp16", access=ACCESS)
    calls = [
        hp.lookup_calls(
            [table], SAMPLES * gpus, way, in_step=way == "backward", alike=TABLES / gpus
        )
        for way in ("forward", "backward")
    ]
    lookup_s, update_s = (float(one) for one in hp.price(machine, calls).seconds)
    m, w = SAMPLES, WIDTH
    forward_s, left_s, right_s = _gemms([(m, w, w), (m, w, w), (w, w, m)])
    messages = pd.DataFrame({
        "collective": ["alltoall", "all_reduce"], "bytes": [POOLED_BYTES, MATRIX_BYTES],
        "n_gpus": gpus, "n_nodes": nodes,
    })  # fmt: skip
    exchange_s, reduce_s = hp.predict_collectives(messages, "zionex")["predicted_s"]
    return Seconds(forward_s, left_s + right_s, lookup_s, update_s, exchange_s, reduce_s)


def _gemms(sizes: Sequence[tuple[int, int, int]]) -> list[float]:
    rows = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(op="gemm", dtype="tf32")
    return list(hp.predict_ops(rows, "a100_sxm4_40g")["predicted_s"])
