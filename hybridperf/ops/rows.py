"""Ops that go row by row on a GPU (norms, softmax, sums of rows): passes over memory, and cycles.

    t      = floor + pnorm( moved / (S BW), a blocks / (SMs clock), c loads / (SMs clock); q )
    moved  = bytes + n e (R - 1) miss,       n = rows cols
    miss   = 1 / (1 + (kappa L2 / waiting)^s)
    waiting = min(rows, SMs b) cols e        rows that were read once and not yet again
    blocks = rows where each row has a thread block, else 0;  loads = n where lanes load singly

bytes: each input read once, each output written once; e bytes of a number; BW, L2, SMs and clock of
the datasheet; S the share of the bandwidth that a plain stream reaches, by class of memory. R, the
reads of a row, and which of the cycles count are the library's plan (`rows.toml`), not a fit. A row
that fits a warp's registers is read once. Instructions carry over between GPUs in cycles, not in
bandwidth: the same kernel of 2023 reaches a third of both an A100 and an H100.

The floor is told by how a row was timed: `KERNEL_S` of a kernel that no host waits for; a table of
calls has its launch, which adds up with the kernel (fitted to 14,000 rows of NeuSight, a sum halves
the loss of a p-norm of 3). Where no library is told, an op does what they do on average, and their
scatter is its uncertainty.

Constants were fitted to NeuSight's layer norms and softmax (8 GPUs) and vidur's RMSNorms (2),
groups alike. A device left out errs by 9.8 % in the median over groups; groups lie `BETWEEN_SD`
apart, rows of one scatter by `WITHIN_SD` (logs; a laboratory left out is a little farther off).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridperf.hardware import DeviceSpec
from hybridperf.io import shipped_toml
from hybridperf.io.namespace import Array, array_module, floats, reals
from hybridperf.ops.base import Op
from hybridperf.ops.roofline import roof_s

# lower bound of a GPU's kernel: median of a V100's short elementwise kernels in the test traces of
# facebookresearch/HolisticTraceAnalysis
KERNEL_S = 2.2e-6
ROW_CYCLES, LOAD_CYCLES = 340.0, 0.71  # a, c; a since Volta
SHARPNESS = 1.0  # p - 1 of the p-norm, whose q is 1 / p
_L2_SHARE, _L2_STEEPNESS = 0.62, 1.4  # kappa, s

BETWEEN_SD, WITHIN_SD = 0.12, 0.15  # of the log of measured over predicted seconds


@dataclasses.dataclass(frozen=True)
class RowKernel:
    """How a library's kernel goes through rows; fields as `rows.toml` says."""

    reads: float
    most: float
    held_columns: float = 0.0
    in_flight: float = 16.0
    block_a_row: float = 0.0
    single_loads: float = 0.0
    dated: float = 0.0


@dataclasses.dataclass(frozen=True)
class RowMachine:
    """What the form knows of a GPU; numbers, traced or not."""

    stream_bytes_per_s: Array  # S BW
    l2_bytes: Array
    sm_count: Array
    clock_hz: Array
    row_cost: float  # cycles of a row over those since Volta

    @staticmethod
    def of(
        device: DeviceSpec, memory_bytes_per_s: Array = None, l2_bytes: Array = None
    ) -> RowMachine | None:
        """None where facts are missing, or of another device than a GPU; its bandwidth and L2 where
        they are not those of its datasheet.
        """
        facts = device.multiprocessors, device.l2_bytes, device.clock_hz
        if device.kind != "gpu" or None in facts:
            return None
        share = _of_architecture("stream_share", device.arch)
        cost = _of_architecture("row_cost", device.arch)
        sms, l2, clock = map(float, facts)  # type: ignore[arg-type]
        bandwidth = device.memory_bytes_per_s if memory_bytes_per_s is None else memory_bytes_per_s
        l2 = l2 if l2_bytes is None else l2_bytes
        return RowMachine(share * bandwidth, l2, sms, clock, cost)


class RowAmounts(NamedTuple):
    """What an op does, for the form [...]."""

    stream_s: Array  # moved, at a plain stream's rate
    block_s: Array  # per cycle of a block that owns a row: blocks / (SMs clock)
    load_s: Array  # and of a single load


class RowWork(NamedTuple):
    """An op's amounts [...], what bounds it, and how little its library is known."""

    amounts: RowAmounts
    most: Array  # seconds over the roofline, without the floor, that no plain kernel exceeds
    library_sd: Array  # of the log of seconds over libraries; 0 where it is told


def goes_by_rows(op: Op) -> bool:
    """Whether the form prices an op."""
    return op.group in _table()["kernels"]


def row_work(op: Any, machine: RowMachine, library: str = "") -> RowWork:
    """An op, or columns of them, as a library's kernels run it; empty or unknown: as any may."""
    kernels = kernels_of(op.group, library)
    each = [_amounts(op, kernel, machine) for kernel in kernels]
    module = array_module(*each[0])
    mean = RowAmounts(*(sum(parts) / len(each) for parts in zip(*each, strict=True)))
    logs = module.stack([module.log(row_seconds(one)) for one in each])
    return RowWork(mean, max(kernel.most for kernel in kernels), module.std(logs, 0))


def row_seconds(amounts: RowAmounts, floor_s: Array = KERNEL_S) -> Array:
    """Seconds by the form at its constants."""
    module = array_module(*amounts, floor_s)
    cycles_s = ROW_CYCLES * amounts.block_s, LOAD_CYCLES * amounts.load_s
    return roof_s(floor_s, (amounts.stream_s, *cycles_s), 1.0 / (1.0 + SHARPNESS), xp=module)


def kernels_of(group: str, library: str = "") -> Sequence[RowKernel]:
    """The kernel of a library; those of all that have one, where it is not told or not known."""
    known = _kernels(group)
    return [known[library]] if library in known else list(known.values())


def is_dated(group: str, library: str) -> bool:
    """Whether a library runs ops of a group by kernels that are meant only where they are named."""
    known = _kernels(group) if group in _table()["kernels"] else {}
    return library in known and known[library].dated > 0


def _amounts(op: Any, kernel: RowKernel, machine: RowMachine) -> RowAmounts:
    module, rows, cols = reals(op.rows, op.cols)
    numbers, row_bytes = rows * cols, cols * op.element_bytes
    apart = module.where(cols > kernel.held_columns, 1.0, 0.0)  # rows that no warp holds
    waiting = module.minimum(rows, machine.sm_count * kernel.in_flight) * row_bytes
    miss = 1.0 / (1.0 + (_L2_SHARE * machine.l2_bytes / waiting) ** _L2_STEEPNESS)
    again = (kernel.reads - 1.0) * apart * miss
    moved = floats(op.work().bytes) + numbers * op.element_bytes * again
    cycles_per_s = machine.sm_count * machine.clock_hz
    return RowAmounts(
        moved / machine.stream_bytes_per_s,
        kernel.block_a_row * machine.row_cost * apart * rows / cycles_per_s,
        kernel.single_loads * numbers / cycles_per_s,
    )


@functools.cache
def _kernels(group: str) -> Mapping[str, RowKernel]:
    return {name: RowKernel(**facts) for name, facts in _table()["kernels"][group].items()}


@functools.cache
def _of_architecture(table: str, arch: str) -> float:
    fitting = [words for words in _table()[table] if arch.startswith(words)]
    return float(_table()[table][max(fitting, key=len)])


@functools.cache
def _table() -> Mapping[str, Any]:
    return shipped_toml(__package__, "rows.toml")
