"""A JAX function as its author wrote it, lowered for a GPU that is not here: the program before any
compiler has changed it.

JAX lowers for a platform that the machine does not have (`lowering_platforms`): its rules for GPUs
count, number formats stay as they are, and each instruction knows the line that asked for it.
cuDNN's fused attention asks which GPU it runs on: it is told of the one that was named.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.workloads.own import check_call, is_foreign, line_of, user_line
from hybridperf.workloads.programs.jax.hlo import Instruction
from hybridperf.workloads.programs.jax.shardings import divided, is_sharded, written_out

_PLATFORMS = {"nvidia": "cuda", "amd": "rocm"}
_LOOP = "stablehlo.while"
_CUDNN = "jax._src.cudnn.fused_attention_stablehlo"
_CUDNN_VERSION = 91100  # the newest whose limits are asked for: none of them holds here


def lower_program(
    fn: Callable, *args: Any, device: DeviceSpec, donate_argnums: int | tuple[int, ...] = (),
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A function as plain data, for a GPU: all that runs the caller's own code.

    Raises:
        InputError: JAX cannot lower it for this GPU.
    """
    platform = _PLATFORMS.get(device.vendor.lower())
    if device.kind != "gpu" or platform is None:
        raise InputError(
            f"expected a GPU of NVIDIA or AMD for a JAX program that is not compiled, got"
            f" {device.id} of {device.vendor}; leave device out for this machine's CPU"
        )
    check_call(fn, args, {})
    with _told_of(device), sentences(device.id):

        def lowered() -> Any:
            traced = jitted(fn, donate_argnums).trace(*args)
            return traced.lower(lowering_platforms=(platform,))

        whole = lowered()
        text = ""
        if is_sharded(whole.as_text()):
            if _LOOP in whole.as_text():
                with written_out():
                    text = divided(_bytecode(lowered()))
            else:
                text = divided(_bytecode(whole))
        divides = bool(text)
        text = text or whole.as_text(dialect="hlo", debug_info=True)
    return {
        "name": name or str(getattr(fn, "__name__", "step")), "backend": "gpu",
        "temporary_bytes": 0, "result_bytes": 0, "hlo": text, "device": device.id,
        "divided": divides,
    }  # fmt: skip


def _bytecode(lowered: Any) -> bytes:
    from jax._src.interpreters import mlir

    return bytes(mlir.module_to_bytecode(lowered.compiler_ir("stablehlo")))


def jitted(fn: Callable, donate_argnums: int | tuple[int, ...]) -> Any:
    """The function as JAX compiles it; `InputError` where arguments cannot be donated any more."""
    import jax

    if hasattr(fn, "lower") and not hasattr(fn, "trace"):
        raise InputError(
            f"{user_line()}: expected a function or one that jax.jit made, got one of jax.pmap,"
            " whose program is not to be had; map over devices by jax.shard_map"
        )
    if not hasattr(fn, "lower"):
        return jax.jit(fn, donate_argnums=donate_argnums)
    if isinstance(donate_argnums, int) or donate_argnums:
        raise InputError(
            f"donate_argnums={donate_argnums} cannot reach a function that is already jitted: give"
            " it to that jax.jit instead"
        )
    return fn


@contextlib.contextmanager
def sentences(device: str) -> Iterator[None]:
    """What JAX cannot trace or lower, as one sentence that names the program's line."""
    import jax

    numbers = jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError
    try:
        yield
    except (*numbers, jax.errors.NonConcreteBooleanIndexError) as error:
        raise InputError(
            f"{_where(error)}: what the program does depends on a number, and none are here"
            f" ({_first_line(error)}); choose by jnp.where, or give the number as a constant"
        ) from error
    except (NotImplementedError, ValueError) as error:
        if "not evenly divisible" in str(error):
            found = re.search(r"which maps (array axis .*? evenly divide \d+)", str(error))
            size = found.group(1) if found else str(error).splitlines()[0]  # in JAX's own words
            raise InputError(
                f"{_where(error)}: the mesh does not divide an argument ({size}); expected sizes"
                " that are multiples of its axes"
            ) from error
        if isinstance(error, ValueError) and "lowering platform" not in str(error):
            raise
        raise InputError(
            f"{_where(error.__cause__ or error)}: JAX cannot lower this for {device} without the"
            f" GPU ({_first_line(error)}); leave it out of the step"
        ) from error


def _where(error: BaseException) -> str:
    return line_of(error) or user_line() or "the program"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["not implemented"])[0].rstrip(".")


@contextlib.contextmanager
def _told_of(device: DeviceSpec) -> Iterator[None]:
    """JAX's questions about the GPU are answered for this one, where it asks as it does today."""
    found = re.search(r"sm_(\d+)(\d)", device.arch)
    capability = (int(found.group(1)), int(found.group(2))) if found else (0, 0)

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(one) for one in text.split("."))

    answers: dict[str, Callable] = {
        "check_cudnn_version": lambda: _CUDNN_VERSION,
        "check_compute_capability": lambda text: capability >= numbers(text),
        "is_cuda_compute_capability_equal": lambda text: capability == numbers(text),
    }
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(_CUDNN)
            for one, answer in answers.items():
                if hasattr(module, one):
                    stack.enter_context(mock.patch.object(module, one, answer))
        yield


class Lines:
    """Which line of the user's program asked for an instruction, as the text's tables have it."""

    def __init__(self, text: str):
        head = text.split("\nENTRY ", 1)[0] if "\nStackFrames" in text else ""
        self._files = dict(re.findall(r'^(\d+) "(.*)"$', _table(head, "FileNames"), re.M))
        self._places = {
            number: (file, line) for number, file, line in re.findall(
                r"^(\d+) \{file_name_id=(\d+).*? line=(\d+)", _table(head, "FileLocations"), re.M
            )
        }  # fmt: skip
        frames = re.findall(
            r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?",
            _table(head, "StackFrames"), re.M,
        )  # fmt: skip
        self._frames = {int(one): (place, int(above or 0)) for one, place, above in frames}
        # jaxlib 0.9 prints the caller's number plus one: the first frame has no caller
        self._shift = int(self._frames.get(1, ("", 0))[1] == 1)

    def of(self, instruction: Instruction) -> str:
        """`FILE line N` of the innermost line that is no installed package's; "" if unknown."""
        found = re.search(
            r'source_file="([^"]*)"[^}]*?source_line=(\d+)', instruction.attributes
        ) or re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        if found is None:
            return ""
        if found.re.groups > 1:
            return f"{found.group(1)} line {found.group(2)}"
        return self._walk(int(found.group(1)))

    def _walk(self, frame: int) -> str:
        innermost = ""
        while frame in self._frames:
            place, above = self._frames[frame]
            file, line = self._places.get(place, ("", ""))
            where = f"{self._files.get(file, '')} line {line}"
            if not is_foreign(where):
                return where
            innermost = innermost or where
            frame = above - self._shift
        return innermost


def _table(head: str, name: str) -> str:
    """Lines of one of the tables at the head of a program."""
    return head.partition(f"\n{name}\n")[2].partition("\n\n")[0]
