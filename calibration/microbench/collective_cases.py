"""Which collectives are measured between processes, and the program that runs each of them.

Sizes count as NVIDIA's nccl-tests and `hybridperf.collectives` count them; on `n` ranks one rank
holds

    collective       `bytes` is              goes in     comes out
    all_reduce       the buffer              bytes       bytes
    all_gather       the whole output        bytes / n   bytes
    reduce_scatter   the whole input         bytes       bytes / n
    alltoall         one rank's send buffer  bytes       bytes
    sendrecv         the message             bytes       bytes       (every rank sends to the next
                     one, in a ring)

Broadcast and reduce are measured through PyTorch only: JAX has no program for them on a CPU
(`jax.lax.pbroadcast` has no rule there in 0.9.2 nor in 0.11.2), and a broadcast written as a masked
sum would be timed as the all-reduce it is.

**What one call runs.** A step waits for a collective inside a compiled program, not for JAX's
dispatch of a program that holds nothing else: what an empty call takes is taken off
(`Team.dispatch_s`), and one call runs `chained` collectives one after the other. Each passes one
number of its result into its input, which is carried on in place:

    y = collective(x);  x[0] = y[-1];  y = collective(x);  x[0] = y[-1];  ...

so that none can be dropped, merged, replaced (an all-reduce of what an all-reduce returned is a
multiplication by n to XLA) or started before the last one ended. Both buffers are donated and come
back: after the warm-up no call copies them or touches new pages. What XLA does around a collective
in any program is counted; for alltoall on a CPU that is a cut of the buffer into n pieces and their
concatenation.

How many: between two processes of one machine with gloo, an empty call took 10 us and the shortest
collective 75 to 150 us, and the minima of 1, 4, 16 and 64 in a call agreed within 20 us. But as
soon as another program ran, long chains met its time slices (2 to 4 ms) in every call: the median
of an all-reduce of 256 B was 200 us at one a call, 0.9 ms at four and 2.7 ms at sixteen. So there
is one. An accelerator's collective is shorter than the dispatch, its host is not in the way, and
there are sixteen; fewer from `CHAINED_BYTES` on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridperf.io import InputError, unknown

ITEM_BYTES = 4  # of the numbers sent: float32
DTYPE = "float"  # their name in tables of collectives, as nccl-tests prints it
SIZES = {
    "quick": tuple(4**k for k in range(4, 14)),  # 256 B to 64 MiB
    # and a few that are no powers of two, where algorithms and buffers are not made to measure
    "full": (*(2**k for k in range(8, 27)), *(3 * 2**k for k in (9, 14, 17, 20, 23))),
}
SIZES["long"] = SIZES["full"]  # with more passes
CHAINED = {"cpu": 1, "accelerator": 16}
CHAINED_BYTES = 2**22  # in one call; above, a collective is so long that the dispatch does not show


@dataclass(frozen=True)
class Collective:
    """One kind of collective on a mesh axis `ranks`; a program's part is float32 [items]."""

    run: Callable[[Any, Any, int], Any]  # (jax.lax, x, number of ranks) -> y
    instruction: str  # its name in a compiled program


def _ring(lax: Any, x: Any, n: int) -> Any:
    return lax.ppermute(x, "ranks", [(rank, (rank + 1) % n) for rank in range(n)])


COLLECTIVES = {
    "all_reduce": Collective(lambda lax, x, n: lax.psum(x, "ranks"), "all-reduce"),
    "all_gather": Collective(
        lambda lax, x, n: lax.all_gather(x, "ranks", tiled=True), "all-gather"
    ),
    "reduce_scatter": Collective(
        lambda lax, x, n: lax.psum_scatter(x, "ranks", tiled=True), "reduce-scatter"
    ),
    "alltoall": Collective(
        lambda lax, x, n: lax.all_to_all(x, "ranks", split_axis=0, concat_axis=0, tiled=True),
        "all-to-all",
    ),
    "sendrecv": Collective(_ring, "collective-permute"),
}

ROOTED = ("broadcast", "reduce")  # of PyTorch alone


@dataclass(frozen=True)
class CollectiveCase:
    """One collective at one size between `n` ranks."""

    collective: str
    # as the table in the module docstring counts them; a whole number of items for every rank
    bytes: int
    n: int
    chained: int  # in one call

    @property
    def key(self) -> str:
        """The case's name in a store."""
        return f"{self.collective} {DTYPE} {self.bytes}"

    @property
    def items_in(self) -> int:
        """Numbers that one rank puts in."""
        return self.bytes // ITEM_BYTES // (self.n if self.collective == "all_gather" else 1)

    @property
    def items_out(self) -> int:
        """Numbers that one rank gets."""
        return self.bytes // ITEM_BYTES // (self.n if self.collective == "reduce_scatter" else 1)


def collective_cases(
    n: int, platform: str, sizes: Sequence[int], only: Sequence[str] = (), library: str = "jax"
) -> list[CollectiveCase]:
    """All cases between `n` ranks on a library's `platform`; sizes [bytes] become divisible."""
    names = (*COLLECTIVES, *(ROOTED if library == "torch" else ()))
    for name in only:
        if name not in names:
            raise unknown("collective", name, names, f"measured are {', '.join(names)}")
    rounded = dict.fromkeys(_divisible(size, n) for size in sizes)  # two sizes may become one
    most = CHAINED["cpu" if platform == "cpu" else "accelerator"]
    return [
        CollectiveCase(name, size, n, chained=min(most, max(1, CHAINED_BYTES // size)))
        for name in only or names
        for size in rounded
    ]


def chain(case: CollectiveCase) -> Callable[[Any, Any], tuple[Any, Any]]:
    """One rank's program (x [items_in], y [items_out]) -> the same, with `chained` collectives."""
    collective = COLLECTIVES[case.collective]

    def run(x: Any, y: Any) -> tuple[Any, Any]:
        from jax import lax

        for _ in range(case.chained):
            y = collective.run(lax, x, case.n)
            x = lax.dynamic_update_slice(x, y[-1:], (0,))
        return x, y

    return run


def count_collectives(case: CollectiveCase, program: str) -> int:
    """How many of the case's collectives a program's text has; start and end are one."""
    return len(re.findall(rf" {COLLECTIVES[case.collective].instruction}(?:-start)?\(", program))


def _divisible(size: int, n: int) -> int:
    if size < ITEM_BYTES:
        why = "a size is that of a buffer of float32"
        raise InputError(f"expected sizes of at least {ITEM_BYTES} bytes, got {size}; {why}")
    return max(1, round(size / (ITEM_BYTES * n))) * ITEM_BYTES * n
