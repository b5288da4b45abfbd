"""A captured PyTorch program -> `Workload`: its kernels one after the other, each launched by the
host; on a CPU its ops one after the other, each with what is spent around it.

Two ways to run it on a GPU. Eager: a kernel or so for each op, and a launch for each kernel.
Compiled: as Inductor fuses them (`inductor.py`). Each kernel has its place in a step, so that the
step effects of PyTorch count for it as for any other step: sustained clocks of products, the share
of the bandwidth that loops reach, what a host needs for a launch.

A CPU calls ops back to back: what a module, a record of gradients or a loop over parameters takes
is not beside the op but before it (`ops.EagerOp`, of which a view is all there is). How long ago an
op's data was last touched follows from which storages the ops of a step use. So do messages between
processes of a machine: gloo copies and adds on the same core, and what another process does
meanwhile is the same step. First of all comes memory that the operating system hands out again in
each step. glibc's `malloc` keeps what is freed but for two kinds (its malloc.c): blocks larger than
32 MiB, and the top of the heap where more than twice the largest other block is free there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybridperf.engine.graph import COMM, COMPUTE
from hybridperf.engine.workload import PeakMemory, Workload
from hybridperf.io import InputError, unknown
from hybridperf.model.calls import Call, CollectiveCall, StepPlace
from hybridperf.ops import Allocation, BatchedGemm, Convolution, EagerOp, Gather, Gemm, OpCall
from hybridperf.ops.attention import Attention
from hybridperf.ops.operand_order import is_channels_first
from hybridperf.workloads.own import labelled
from hybridperf.workloads.programs.in_program import (
    LAUNCH,
    Issued,
    Launched,
    Origin,
    Sent,
    in_turn,
    on_streams,
    program_workload,
    refuse_unpriced,
    role_of,
)
from hybridperf.workloads.programs.reuse import (
    FRESH_BLOCK_BYTES,
    CpuStep,
    Touch,
    rounded,
    with_reuse,
)
from hybridperf.workloads.programs.torch import inductor
from hybridperf.workloads.programs.torch.bounds import as_bound, bound, is_bound
from hybridperf.workloads.programs.torch.calls import Tensor
from hybridperf.workloads.programs.torch.capture import NOT_COMPILED, Captured, capture
from hybridperf.workloads.programs.torch.eager import by_rows, in_stored_order, on_images
from hybridperf.workloads.programs.torch.inductor import PricedOp
from hybridperf.workloads.programs.torch.launches import launch_of, launch_of_update, launched
from hybridperf.workloads.programs.torch.messages import (
    COPIED,
    COPIED_IN,
    GATHERED,
    collective,
    is_message,
    place_of,
)
from hybridperf.workloads.programs.torch.on_cpu import kernels_on_cpu
from hybridperf.workloads.programs.torch.ops import kernels as kernels_on_gpu
from hybridperf.workloads.programs.torch.record import (
    BACKWARD,
    DISPATCHED,
    FORWARD,
    OPTIMIZER,
    WRAPPED,
    CapturedOp,
)
from hybridperf.workloads.transformer.framework import framework_of_programs
from hybridperf.workloads.transformer.in_step import call_in_step

# `scaled_dot_product_attention` on numbers of two bytes
_ATTENTION_KERNEL, _KERNEL_BYTES = "sdpa", 2
_ADDED_FIRST = ("aten::addmm", "aten::baddbmm")  # what is added comes before what is multiplied
_ONE_STAGE = (
    "one rank is seen: what it waits for of other stages of a pipeline, its bubble, is not counted"
)
_KERNELS = {"gpu": kernels_on_gpu, "cpu": kernels_on_cpu}


def from_torch(
    fn: Callable, *args: Any, kwargs: Mapping[str, Any] | None = None, optimizer: Any = None,
    train: bool = True, compiled: bool = False, gpus_per_node: int = 8,
    ignore: Collection[str] = (), name: str | None = None, backend: str = "gpu",
) -> Workload:  # fmt: skip
    """A step of a PyTorch program on a GPU that is not here, or on a CPU.

    The program runs on tensors without memory: no GPU, no weights, a model of any size.

    Args:
        fn: a module, or a function that returns a loss or does a whole step.
        args: what it takes; real tensors stand for their shapes and formats.
        kwargs: what it takes by name, alike: {"labels": labels}.
        optimizer: of the module's parameters, or its class; None: none.
        train: with gradients; else inference alone.
        compiled: by `torch.compile`, as a whole; else op by op.
        gpus_per_node: of a program of many ranks, made in `hp.without_memory(ranks=...)`; on CPUs
            processes of a machine.
        ignore: ops to leave out, by name ("aten::svd").
        name: of the workload; None: that of `fn`.
        backend: kind of device, "gpu" or "cpu"; a CPU runs op by op.

    Raises:
        InputError: PyTorch is not installed; what the program does next depends on numbers; an op
            that nobody can price, which is named with its line.
    """
    if backend not in _KERNELS:
        raise unknown("backend", backend, _KERNELS, f"known are {', '.join(_KERNELS)}")
    captured = capture(
        fn, args, kwargs=kwargs, optimizer=optimizer, train=train, name=name, backend=backend
    )
    options: dict[str, Any] = {"gpus_per_node": gpus_per_node, "ignore": ignore}
    return workload_of(captured, compiled=compiled, backend=backend, **options)


def workload_of(
    captured: Captured, *, compiled: bool = False, gpus_per_node: int = 8,
    ignore: Collection[str] = (), backend: str = "gpu",
) -> Workload:  # fmt: skip
    """What `from_torch` gives of what was captured for the same backend."""
    if compiled and backend == "cpu":
        raise InputError(
            "expected a step that a CPU runs op by op, got a compiled one: no calibration knows"
            " Inductor's loops of a CPU; leave out compiled=True (`--compiled`)"
        )
    if gpus_per_node < 1:
        raise InputError(f"expected one GPU per node or more, got {gpus_per_node}")
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    placed = priced_ops(captured, ignored, backend)
    if not any(calls or is_message(op) for op, calls in placed):
        raise InputError(f"{captured.name}: no op of it launches a kernel; expected a step")
    peak_bytes = captured.peak_bytes
    planes = not compiled or inductor.stays_in_planes(placed)
    if compiled:
        placed, peak_bytes = inductor.compiled(placed, captured.kept_bytes)
    elif backend == "gpu":
        placed = [
            (op, calls if any(map(is_bound, calls)) else _as_stored(op, calls))
            for op, calls in placed
        ]
    origins: tuple[Origin, ...] = ()
    if backend == "cpu":
        activation_bytes = captured.peak_bytes - captured.kept_bytes
        calls = _calls_in_order(placed, activation_bytes, gpus_per_node)
        graph, found = in_turn((label_of(placed[at][0]), call) for at, call in calls)
        rows = {(call, StepPlace()): row for call, row in found.items()}
    else:
        issued = _issued(placed, captured.updated, gpus_per_node, compiled, planes)
        graph, rows, origins = on_streams(issued)
    framework = "" if backend == "cpu" else framework_of_programs(compiled)
    kernels = (call for _, calls in placed for call in calls)
    left_out = Counter(op.call.kind for op in captured.ops if op.call.kind in ignored)
    return program_workload(
        captured.name, graph, rows, kernels, framework, backend=backend,
        library="torch" if backend == "cpu" else "", origins=origins,
        notes=(
            *(note for note in captured.notes if not (compiled and note == NOT_COMPILED)),
            *([_ONE_STAGE] if any(place.role == "p2p" for _, place in rows) else []),
            *(f"ignored {kind}, {times} of them" for kind, times in left_out.items()),
            *dict.fromkeys(
                as_bound(op.call, labelled(op.call.kind, op.where))
                for op, kernels in placed if any(map(is_bound, kernels))
            ),
        ),
        peak_memory=PeakMemory(peak_bytes, "parameters, activations and states of"),
    )  # fmt: skip


def _issued(
    placed: Sequence[PricedOp], updated: int, gpus_per_node: int, compiled: bool, planes: bool
) -> Iterator[Issued]:
    """What ops issue; `planes`: images lie as the program has them.

    Who sends fills its buffers in place; what made room for a message (FSDP2's copies into the
    buffer that is gathered) goes with it on its stream.
    """
    for op, calls in placed:
        label, read, written = label_of(op), _storages(op.call.read), _storages(op.call.written)
        origin = op.module, op.phase
        if is_message(op):
            call = collective(op, gpus_per_node)
            if call is None:
                yield Issued(label, read, written)
            else:
                sent = (Sent(call, place_of(op, call)),)
                ahead = op.call.kind in GATHERED
                yield Issued(
                    label, read, (*written, *read), messages=sent, ahead=ahead, origin=origin
                )
            continue
        kernels = tuple(
            Launched(
                as_run(op, kernel, compiled, planes),
                StepPlace(role_in_step(op, kernel), launched(kernel)),
                launch_of(op, kernel, at > 0, compiled),
            )
            for at, kernel in enumerate(calls)
        )  # fmt: skip
        stream = COMM if op.call.kind in COPIED_IN else COMPUTE
        yield Issued(label, read, written, kernels, stream=stream, origin=origin)
    if any(op.phase == OPTIMIZER for op, _ in placed):
        done = Launched(LAUNCH, StepPlace(), launch_of_update(updated))
        yield Issued("update", kernels=(done,), origin=(OPTIMIZER, OPTIMIZER))


def _storages(tensors: Sequence[Tensor]) -> list[int]:
    return [one.storage for one in tensors]


def priced_ops(captured: Captured, ignored: frozenset[str], backend: str = "gpu") -> list[PricedOp]:
    """Ops with the kernels that they launch, and messages; on a CPU also what has no kernel.

    What has no rule is a bound on a GPU (`bounds.py`); `InputError` names what has no price.
    """
    found, unpriced = list[PricedOp](), dict[str, str]()
    for op in captured.ops:
        kind = op.call.kind
        if kind in ignored or (backend == "gpu" and on_host(op)):
            continue
        if is_message(op) or kind in (DISPATCHED, WRAPPED):
            found.append((op, ()))
            continue
        calls = _KERNELS[backend](op.call)
        if calls and captured.tf32 and backend == "gpu":
            calls = tuple(map(_in_tf32, calls))
        if calls is None and backend == "gpu":
            calls = bound(op.call)
        if calls is None:
            unpriced[kind] = unpriced.get(kind) or op.where
        elif calls or backend == "cpu":
            found.append((op, calls))
    refuse_unpriced(captured.name, unpriced, ", or give a rule by hp.price_torch_op")
    return found


def _as_stored(op: CapturedOp, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """Kernels of an op that PyTorch runs by itself, with what the order of its tensors adds."""
    return by_rows(op.call, in_stored_order(op.call, on_images(op.call, calls)))


def _in_tf32(call: OpCall) -> OpCall:
    """A product of single precision as `torch.backends.cuda.matmul.allow_tf32` has it; convolutions
    are by themselves (`ops/convolution.py`).
    """
    if isinstance(call.op, Gemm | BatchedGemm) and call.op.dtype == "fp32":
        return replace(call, op=replace(call.op, dtype="tf32"))
    return call


def on_host(op: CapturedOp) -> bool:
    """An optimizer's arithmetic on single numbers, such as its count of steps."""
    tensors = [*op.call.read, *op.call.written]
    return op.phase == OPTIMIZER and all(not tensor.shape for tensor in tensors)


def as_run(op: CapturedOp, call: OpCall, compiled: bool, planes: bool = True) -> Call:
    """A kernel of an op in a step; fused attention is PyTorch's own, as in any step of
    torchtitan's. Inductor orders and pads what its products read, eager PyTorch does not.

    `planes`: images of convolutions lie as the program has them.
    """
    if isinstance(call.op, Attention) and call.op.element_bytes == _KERNEL_BYTES:
        call = replace(call, kernel=_ATTENTION_KERNEL)
    left = op.call.tensor(1 if op.call.kind in _ADDED_FIRST else 0)
    if planes and isinstance(call.op, Convolution) and left is not None:
        in_planes = float(is_channels_first(call.op, left.strides))
        call = replace(call, op=replace(call.op, channels_first=in_planes))
    if compiled:
        return call_in_step(call)
    # of weights' gradients: turned, so that tokens are summed over
    return call_in_step(call, "k" if left is not None and left.transposed else "m")


def role_in_step(op: CapturedOp, kernel: OpCall) -> str:
    """Which step effects count for a kernel of an op."""
    if op.phase == OPTIMIZER:
        return "optimizer"
    return role_of(kernel)


def label_of(op: CapturedOp) -> str:
    """What people read: the op, and the file's name and line that asked for it."""
    kind = op.call.kind.removeprefix("aten::")
    return labelled(kind, op.where) if op.where else f"{kind} of {op.phase}"


_PHASE = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "update"}
_KEPT_BLOCKS, _LEAST_KEPT_BYTES = 2, 2**17  # free at the top of the heap


def _calls_in_order(
    placed: list[PricedOp], activation_bytes: float, gpus_per_node: int
) -> list[tuple[int, Call]]:
    """(place of the op, call) of a step, in order; `activation_bytes`: that it makes and frees
    again: results lie there by turns.
    """
    fresh_bytes = _fresh_bytes(placed, activation_bytes)
    steps = [CpuStep("", Allocation("fp32", bytes=fresh_bytes))] if fresh_bytes else []
    owners = [0] * len(steps)
    for at, (op, kernels) in enumerate(placed):
        if is_message(op):
            if (sent := collective(op, gpus_per_node)) is not None:
                read, written = (_touches(of, sent.bytes) for of in (op.call.read, op.call.written))
                steps.append(CpuStep("", sent, 1.0, read, written))
                owners.append(at)
            continue
        found = [CpuStep("", EagerOp("fp32", phase)) for phase in _overheads(op)]
        for one in kernels:
            moved = float(one.op.work().bytes)  # of a table only the rows that are looked up
            reads, writes = _touches(op.call.read, moved), _touches(op.call.written, moved)
            table = None
            if isinstance(one.op, Gather):
                table = str(op.call.read[0].storage), op.call.read[0].bytes
            found.append(CpuStep("", one.op, one.times, reads, writes, table))
        steps += found
        owners += [at] * len(found)
    calls = list[tuple[int, Call]]()
    for at, step in zip(owners, with_reuse(steps, activation_bytes), strict=True):
        if isinstance(step.op, CollectiveCall):
            calls.append((at, step.op))
            continue
        reuse_bytes = rounded(step.reuse_bytes) if step.reads else None
        calls.append((at, OpCall(step.op, step.times, reuse_bytes)))
    return calls


def _overheads(op: CapturedOp) -> list[str]:
    """What is spent around an op, by phase."""
    if op.call.kind in (DISPATCHED, WRAPPED):
        return ["dispatched", *["wrapped"] * (op.call.kind == WRAPPED)]
    found = [_PHASE[op.phase]]
    if op.call.kind in COPIED:
        found += ["gathered", *["parameter"] * len(op.call.lists[0])]
    return found


def _fresh_bytes(placed: list[PricedOp], activation_bytes: float) -> float:
    """That a step touches for the first time."""
    found: dict[int, float] = {}
    known: set[int] = set()
    for op, _ in placed:
        known |= {one.storage for one in op.call.read if one.storage not in found}
        for one in op.call.written:
            if one.storage not in known:
                found[one.storage] = max(one.bytes, found.get(one.storage, 0.0))
    own_bytes = sum(size for size in found.values() if size >= FRESH_BLOCK_BYTES)
    largest = max((size for size in found.values() if size < FRESH_BLOCK_BYTES), default=0.0)
    kept_bytes = max(_KEPT_BLOCKS * largest, _LEAST_KEPT_BYTES)
    return own_bytes + max(activation_bytes - own_bytes - kept_bytes, 0.0)


def _touches(tensors: list[Tensor], most_bytes: float) -> tuple[Touch, ...]:
    """Each storage once."""
    named = {str(one.storage): one.bytes for one in tensors}
    return tuple(Touch(name, min(size, most_bytes), size) for name, size in named.items())
