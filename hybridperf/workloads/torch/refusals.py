"""What a PyTorch program does that cannot be followed on tensors without memory, in a sentence."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from hybridperf.io import InputError
from hybridperf.workloads.own import line_of, user_line

# as PyTorch's errors say it
_NEEDS_A_GPU = (
    "CUDA enabled", "CUDA support", "on CPU", "dummy base class", "to be on GPU", "non-CPU accel",
)  # fmt: skip
_NUMBERS = (".numpy()", "FakeTensor.__format__")  # asked for, as they are or as text
_NO_GROUP = ("ProcessGroup object", "_use_python_reducer", "process group has not been initialized")
_UNDIVIDED = ("Mesh should not be bigger", "Sharding propagation failed")
_SENTENCES = {
    _NO_GROUP: "the program sends to other ranks, and there are none; make it and call"
    " hp.from_torch inside one `with hp.without_memory(ranks=N):`",
    _UNDIVIDED: "the mesh does not divide this ({does}); expected a mesh of as many ranks as"
    " hp.without_memory(ranks=N) makes, and sizes that are multiples of its own",
    _NUMBERS: "a tensor's numbers are asked for, and it has none here; return the tensor and read"
    " it after the step",
}
_NO_RULE = "no rule registered for HigherOrderOperator"
_INSTEAD = {
    "FSDP needs": "shard by torch.distributed.fsdp.fully_shard (FSDP2), which is followed",
    "SyncBatchNorm": "take nn.BatchNorm2d, whose statistics of one rank cost as much but for a"
    " message of two numbers a channel",
}


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Errors of what cannot be known without numbers, or without a GPU, as one sentence each that
    names the program's line.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    )

    quiet = logging.getLogger("torch._subclasses.fake_tensor")  # writes a traceback of its own
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = (
            "a number is read from a tensor, and what follows may depend on it ({}); return the"
            " tensor and read it after the step"
            if isinstance(error, DataDependentOutputException)
            else "the size of a result depends on numbers ({}); give it a size of its own, or leave"
            " it out of the step"
        )
        raise InputError(f"{_line(error)}: {what.format(_op_name(error))}") from error
    except UnsupportedOperatorException as error:
        raise InputError(
            f"{_line(error)}: {_op_name(error)} has no rule for tensors without memory; register"
            " one by torch.library.register_fake"
        ) from error
    except InputError:
        raise
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        told = str(error)
        does = told.splitlines()[0].rstrip(".") if told else ""
        for words, sentence in _SENTENCES.items():
            if any(word in told for word in words):
                raise InputError(f"{_line(error)}: {sentence.format(does=does)}") from error
        if _NO_RULE in told:
            name = told.partition(_NO_RULE)[2].split()[0]
            raise InputError(
                f"{_line(error)}: {name} chooses by numbers what comes next, and none are here;"
                " call the branch that counts"
            ) from error
        if not any(word in told for word in _NEEDS_A_GPU):
            raise
        instead = next((one for word, one in _INSTEAD.items() if word in does), None)
        raise InputError(
            f"{_line(error)}: PyTorch does this on a GPU only, and none is here ({does});"
            f" {instead or 'leave it out of the step'}"
        ) from error
    finally:
        quiet.setLevel(level)


def _line(error: BaseException) -> str:
    return line_of(error) or user_line() or "the program"


def _op_name(error: Exception) -> str:
    func = getattr(error, "func", None)
    return str(func if func is not None else (error.args or ("an op",))[0])
