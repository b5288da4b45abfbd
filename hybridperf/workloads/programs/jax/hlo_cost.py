"""Flops, transcendentals and traffic of HLO instructions.

Counts follow XLA's own cost analysis, so that a user can hold ours against
`compiled.cost_analysis()`: one flop per element of an arithmetic instruction, transcendentals
apart, 2 per multiply-add of a dot or convolution (padding not counted), one application of the
combining function less than elements for a reduction. Two deliberate differences: a while loop
counts its body times its trip count (XLA: once), and bytes are what an instruction has to move, so
a slice or gather reads only what it picks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

from hybridperf.io import InputError
from hybridperf.workloads.programs.jax.hlo import TABLES, Computation, Instruction, Module, Shape

FLOPS_PER_MULTIPLY_ADD = 2

TRANSCENDENTAL, ARITHMETIC, MOVEMENT, COMPOSITE = map(frozenset, TABLES["opcodes"].values())
KNOWN = TRANSCENDENTAL | ARITHMETIC | MOVEMENT | COMPOSITE


@dataclasses.dataclass(frozen=True)
class Count:
    """Arithmetic of an instruction or computation."""

    flops: float = 0.0
    transcendentals: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.flops + other.flops, self.transcendentals + other.transcendentals)

    def __mul__(self, times: float) -> Count:
        return Count(self.flops * times, self.transcendentals * times)


class Costs:
    """Counts over one module; computations that are called from several places are counted once."""

    def __init__(self, module: Module):
        self.module = module
        self.computation = functools.cache(self._computation)

    def instruction(self, instruction: Instruction, within: Computation) -> Count:
        """Arithmetic of one instruction and everything it calls (a while loop's body once)."""
        opcode = instruction.opcode
        elements = instruction.shape.elements if instruction.shapes else 0
        if opcode in TRANSCENDENTAL or opcode == "rng":
            return Count(0.0, elements)
        if opcode in ARITHMETIC:
            return Count(elements, 0.0)
        if opcode in ("fusion", "call"):
            return self.computation(self.module.called(instruction, "calls", "to_apply").name)
        operands = [within.by_name[name].shape for name in instruction.operands]
        if opcode == "dot":
            products = math.prod(dot_sizes(instruction, operands[0]))
            return Count(float(FLOPS_PER_MULTIPLY_ADD * products), 0.0)
        if opcode == "convolution":
            sizes = convolution_sizes(instruction, operands[0], operands[1])
            # batch groups are no longer in the result's batch
            per_position = sizes.batch * sizes.c_out * sizes.c_in / sizes.groups
            return Count(float(FLOPS_PER_MULTIPLY_ADD * per_position * math.prod(sizes.valid)))
        applied = instruction.called("to_apply")
        if applied is None or opcode not in COMPOSITE:
            return Count()
        once = self.computation(applied)
        if opcode == "map":
            return once * elements
        if opcode == "reduce":
            return once * (operands[0].elements - elements)
        window = math.prod(window_sizes(instruction))
        if opcode == "reduce-window":
            return once * (elements * (window - 1))
        if opcode == "scatter":
            return once * operands[-1].elements
        if opcode == "select-and-scatter":
            selected = self.computation(self.module.called(instruction, "select").name)
            scattered = self.computation(self.module.called(instruction, "scatter").name)
            return selected * (operands[1].elements * (window - 1)) + scattered * elements
        if opcode == "sort":
            sorted_elements = operands[0].elements
            levels = max(math.ceil(math.log2(max(sorted_elements, 1))), 0)
            return Count(sorted_elements * levels, 0.0)
        return Count()

    def _computation(self, name: str) -> Count:
        computation = self.module.computations[name]
        return sum((self.instruction(i, computation) for i in computation.instructions), Count())


def dot_sizes(instruction: Instruction, lhs: Shape) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of a dot."""
    batch = math.prod(lhs.dims[d] for d in instruction.dims("lhs_batch_dims"))
    k = math.prod(lhs.dims[d] for d in instruction.dims("lhs_contracting_dims"))
    m = lhs.elements // max(batch * k, 1)
    n = instruction.shape.elements // max(batch * m, 1)
    return batch, m, n, k


@dataclasses.dataclass(frozen=True)
class ConvolutionSizes:
    """Sizes of a convolution; lists run over its spatial dimensions."""

    batch: int
    c_in: int
    c_out: int
    image: list[int]
    kernel: list[int]
    out: list[int]
    valid: list[float]  # kernel positions inside the image, summed over outputs
    groups: int


def convolution_sizes(instruction: Instruction, image: Shape, kernel: Shape) -> ConvolutionSizes:
    """Read `window={...}` and `dim_labels=b01f_01io->b01f`."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise InputError(
            f"HLO convolution {instruction.name} has no dim_labels; expected the text of a compiled"
            " XLA module"
        )
    image_labels, kernel_labels, out_labels = labels.groups()
    spatial = sorted(c for c in image_labels if c.isdigit())

    def sizes(shape: Shape, letters: str) -> list[int]:
        return [shape.dims[letters.index(c)] for c in spatial]

    window = _window(instruction)
    in_sizes, kernel_sizes = sizes(image, image_labels), sizes(kernel, kernel_labels)
    out_sizes = sizes(instruction.shape, out_labels)

    def along(name: str, default: Any) -> list:
        return window.get(name, [default] * len(spatial))

    strides, lows = along("stride", 1), [low for low, _ in along("pad", (0, 0))]
    image_steps, kernel_steps = along("lhs_dilate", 1), along("rhs_dilate", 1)
    columns = (in_sizes, kernel_sizes, out_sizes, strides, lows, image_steps, kernel_steps)
    valid = [_valid_positions(*of_dimension) for of_dimension in zip(*columns, strict=True)]
    groups = int(instruction.word("feature_group_count") or 1)
    return ConvolutionSizes(
        batch=instruction.shape.dims[out_labels.index("b")],
        c_in=kernel.dims[kernel_labels.index("i")] * groups,
        c_out=kernel.dims[kernel_labels.index("o")], image=in_sizes, kernel=kernel_sizes,
        out=out_sizes, valid=valid, groups=groups,
    )  # fmt: skip


def window_sizes(instruction: Instruction) -> list[int]:
    """Extent of a window in every dimension."""
    return _window(instruction).get("size", [1])


def _window(instruction: Instruction) -> dict[str, list]:
    found = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    fields: dict[str, list] = {}
    for name, value in re.findall(r"(\w+)=([\dx_\-]+)", found.group(1) if found else ""):
        if name == "pad":
            sides = (item.split("_") for item in value.split("x"))
            fields[name] = [(int(low), int(high)) for low, high in sides]
        else:
            fields[name] = [int(item) for item in value.split("x")]
    return fields


def _valid_positions(
    image: int, kernel: int, out: int, stride: int, low: int, image_step: int, kernel_step: int
) -> float:
    """(Output, kernel position) pairs of one dimension that meet an image element, no padding."""
    total = 0
    extent = (image - 1) * image_step + 1
    for position in range(kernel):
        # image coordinate of output o: o * stride - low + position * kernel_step, in the
        # dilated image
        offset = position * kernel_step - low
        first = max(0, math.ceil(-offset / stride))
        last = min(out - 1, (extent - 1 - offset) // stride)
        if last < first:
            continue
        if image_step == 1:
            total += last - first + 1
        else:
            total += sum((o * stride + offset) % image_step == 0 for o in range(first, last + 1))
    return float(total)
