"""Closed forms whose knobs a prior learns: the interface, their derivative, and the roofline with
waves, the form of ops on a GPU.

    t0   = floor + body
    body = ( (F / (e_P P))^p + (B / (e_B BW))^p + (tau W)^p + (sigma S)^p )^(1/p)

That is the roofline of `ops.roofline`, added up by its `roof_s`, with two more resources: F, B are
flops and bytes of the op; P, BW the datasheet's peaks; W waves, thread blocks per SM; S the steps
that the busiest SM takes one after the other. Six knobs per device and implementation, kept as
logs: floor (s), e_P and e_B (shares of the peaks), p - 1 (how sharp the roof's corner is), tau (s,
one wave's latency), sigma (s, one step). Knobs of files from before sigma are five, and leave its
term out. It is monotone in F, B, W and S for any knobs. Memory levels, strided reads and
transcendentals are not among its terms: measured GPUs tell little of them.

Ops that go row by row (`ops.rows`) have the same form with other terms: B / BW is what they move
at a plain stream's rate, W and S are blocks of a row and single loads over the GPU's cycles a
second, tau and sigma cycles of each. Attention of whole sequences (`ops.scores`) has arithmetic in
cycles of scores, W and S are its longest block and the start of blocks. In both the formula's own
constants stand for kernels that nobody measured.

Axes: N rows, K knobs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.ops import rows, scores
from hybridperf.ops.roofline import roof_s

# of a complex step: no difference is taken, so it may be as small as numbers go
_STEP = 1e-100
_CHUNK = 256  # rows differentiated at once: what lies between stays in a core's cache


@dataclasses.dataclass(frozen=True)
class ClosedFormValues:
    """What a closed form predicts of some rows."""

    total: Any  # [N] log of seconds
    # [N, len(form.position)] where the rows stand on it: what a network may know of their place
    position: Any


class ClosedForm(Protocol):
    """A closed form with K knobs per device and implementation, all kept as logs."""

    name: str  # in files
    knobs: tuple[str, ...]  # their names
    position: tuple[str, ...]  # names of what `closed` tells of a row's place
    start: np.ndarray  # [K] where a device with rows enough begins
    start_spread: np.ndarray  # [K] and how far it may go
    least_spread: np.ndarray  # [K] over devices, however well a few of them agree
    known_spread: Mapping[str, float] = {}  # the same, of knobs of which measurements do not tell

    def shared(self, words: tuple[str, ...]) -> str:
        """What implementations have alike whose knobs move together on a device, such as a link."""
        del words
        return ""  # all of a device move together

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        """[N] logs of seconds at knobs theta [N, K] (or [K]), which may be complex, with axes
        before theirs: `slopes` asks for them so.
        """
        return np.asarray(self.closed(theta, work).total)

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        """Seconds by the closed form, and the features that a correction sees."""


def slopes(form: ClosedForm, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
    """d log_s / d theta [N, K] at knobs theta [N, K], of any form, exact to rounding.

    A knob moved by i h moves the imaginary part by h times the slope (Squire & Trapp, "Using
    complex variables to estimate derivatives of real functions", 1998). Nothing is compiled, which
    would take longer than a fit to few rows.
    """
    moved = 1j * _STEP * np.eye(theta.shape[1])[:, None]
    parts = (slice(at, at + _CHUNK) for at in range(0, len(work), _CHUNK))
    return np.concatenate([form.log_s(theta[at] + moved, work[at]).imag.T for at in parts]) / _STEP


STEP_S = 20e-9  # a usual step of a block on matrix units
_PRODUCTS = frozenset({"gemm", "matmul", "linear", "bmm", "mla_gen_pre", "mla_gen_post"})
# logs of ratios of times end here: a term that is absent is not a thousand octaves away
FAR = 12.0


@dataclasses.dataclass(frozen=True, eq=False)
class WaveRoofline(ClosedForm):
    """The roofline with waves; `work` [N, 4]: logs of arithmetic s, traffic s, waves and steps."""

    name: str
    knobs: tuple[str, ...]
    start: np.ndarray
    start_spread: np.ndarray
    # of the log of seconds by `start`, where that serves kernels nobody measured; None: what they
    # share with those that were measured does
    law_sd: float | None = None

    position = (
        "compute_over_memory", "compute_bound", "body_over_floor", "compute_over_floor",
        "memory_over_floor", "total_over_floor", "above_floor", "waves_over_floor",
        "waves_over_total",
    )  # fmt: skip
    # three devices that happen to agree do not make a law
    least_spread = np.array([0.15, 0.1, 0.1, 0.1, 0.2, 0.2])
    # few rows say little of the corner, and it trades against the efficiencies
    known_spread = {"sharpness": 0.1}  # noqa: RUF012  # annotated it would be a field

    def shared(self, words: tuple[str, ...]) -> str:
        """The number format of products, which libraries take from one another; else the framework.

        By rows of the other library alone on GPUs left out, decode errs by 28.8 % with what both
        deviate by in common and by 23.0 without, products in bf16 by 9.2 and 10.5 %; products in
        bf16 by rows in fp8 by 11.4 and 8.4 %.
        """
        op, framework, dtype, *_ = (*words, "", "", "")
        return dtype if op in _PRODUCTS else framework

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(_parts(theta, work)[2]))

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        module = work.__array_namespace__()
        terms, body_s, total_s = _parts(theta, work)
        body, total = module.log(body_s), module.log(total_s)
        floor = np.broadcast_to(theta[..., 0], body.shape)
        compute, memory, *serial = terms
        waves = functools.reduce(module.logaddexp, serial)
        over_floor = [one - floor for one in (body, compute, memory, total, waves)]
        ratios = module.stack([compute - memory, *over_floor, waves - total]).clip(-FAR, FAR)
        balance, above, compute, memory, high, waves, of_waves = ratios
        above_floor = 1 / (1 + module.exp(-above))
        place = [balance, module.tanh(balance), above, compute, memory, high, above_floor]
        return ClosedFormValues(total, module.stack([*place, waves, of_waves], 1))


def _parts(theta: np.ndarray, work: Any) -> tuple[list[Any], Any, Any]:
    """(logs of seconds of arithmetic, traffic, waves and steps, seconds of all of them, with the
    floor).
    """
    floor, compute, memory, sharpness, *serial = (theta[..., at] for at in range(theta.shape[-1]))
    terms = [work[..., 0] - compute, work[..., 1] - memory]
    terms += [work[..., 2 + at] + each for at, each in enumerate(serial)]
    module = work.__array_namespace__()
    q = 1.0 / (1.0 + np.exp(sharpness))
    body_s = roof_s(0.0, [module.exp(term) for term in terms], q, xp=module)
    return terms, body_s, np.exp(floor) + body_s


_SHARES = ("floor_s", "compute_efficiency", "memory_efficiency", "sharpness")  # which is p - 1
WAVE_ROOFLINE = WaveRoofline(
    "waves", (*_SHARES, "wave_s", "step_s"),
    start=np.log([5e-6, 0.6, 0.7, 2.0, 0.5e-6, STEP_S]),
    start_spread=np.array([1.5, 0.5, 0.5, 0.5, 1.5, 1.5]),
)  # fmt: skip
_BY_ROWS = np.log([rows.KERNEL_S, 0.6, 1.0, rows.SHARPNESS, rows.ROW_CYCLES, rows.LOAD_CYCLES])
# a launch is some 20 kernels long
ROW_ROOFLINE = WaveRoofline(
    "rows", (*_SHARES, "row_cycles", "load_cycles"),
    start=_BY_ROWS, start_spread=np.array([2.0, 0.5, 0.15, 0.3, 0.5, 0.3]),
    law_sd=float(np.hypot(rows.BETWEEN_SD, rows.WITHIN_SD)),
)  # fmt: skip
_BY_SCORES = np.log([
    scores.KERNEL_S, scores.REACHED, scores.MEMORY, scores.SHARPNESS, scores.LONGEST,
    scores.BLOCK_CYCLES,
])  # fmt: skip
SCORE_ROOFLINE = WaveRoofline(
    "scores", (*_SHARES, "longest_share", "block_cycles"),
    start=_BY_SCORES, start_spread=np.array([1.5, 0.4, 0.5, 0.5, 0.5, 1.0]),
    law_sd=float(np.hypot(scores.BETWEEN_SD, scores.WITHIN_SD)),
)  # fmt: skip
LAWS: Mapping[str, WaveRoofline] = {one.name: one for one in (ROW_ROOFLINE, SCORE_ROOFLINE)}

_USUAL_CLOCK_HZ = 1.9e9  # where a device's is not known
_OF_THE_CLOCK = [WAVE_ROOFLINE.knobs.index(name) for name in ("floor_s", "wave_s", "step_s")]
OF_THE_PEAK = WAVE_ROOFLINE.knobs.index("compute_efficiency")
_OF_THE_MEMORY = WAVE_ROOFLINE.knobs.index("memory_efficiency")


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a datasheet says of the knobs of `WaveRoofline`; none: nothing is moved.

    Knobs of other devices are taken over per cycle and per rate that a device sustains, not per
    second and per peak: a kernel's start and a wave's latency are cycles of the chip's clock, a
    card with a low power limit never reaches the peak of its boost clock, and a kernel that a
    chip's multiprocessors hold up gains nothing from a wider memory.
    """

    clock_hz: float | None = None  # of kernels that no host launches
    # share of its datasheet peak that its power limit lets it hold, by number format; 1 elsewhere
    sustained: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory_share: float = 1.0  # of the memory's bandwidth, against a usual machine's
    takes_kernels: bool = False  # libraries take others' on it (`implementation.taken_from`)
    # class of devices that err alike; "" of the usual one
    kind: str = ""
    # deviations of the log of seconds: of one laboratory from others, of a class from usual devices
    laboratory_sd: float = 0.0
    kind_sd: float = 0.0

    def moves(self, implementations: Sequence[str], knobs: int) -> np.ndarray:
        """[len(implementations), knobs] how far logs of knobs lie from those of a usual machine."""
        out = np.zeros((len(implementations), knobs))
        if self.clock_hz:
            there = [at for at in _OF_THE_CLOCK if at < knobs]  # older knobs have no step
            out[:, there] = np.log(_USUAL_CLOCK_HZ / self.clock_hz)
        if self.sustained:
            dtypes = [OpImplementation.parse(name).dtype for name in implementations]
            out[:, OF_THE_PEAK] = np.log([self.sustained.get(dtype, 1.0) for dtype in dtypes])
        if self.memory_share != 1:
            out[:, _OF_THE_MEMORY] = np.log(self.memory_share)
        return out


NO_FACTS = Machine()
