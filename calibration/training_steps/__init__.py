"""Real JAX training steps, and the programs that time them: `run` and `sharded_dlrm`.

Nothing here imports JAX by itself, so that `run` can pin the process first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, cast

from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from hybridperf.io import InputError


class Started(Protocol):
    """A step that is called again and again."""

    loss: Any  # of the last call

    @property
    def program(self) -> Mapping[str, Any] | None:
        """What was compiled; None: op by op."""

    @property
    def peak_bytes(self) -> float | None:
        """The most that it allocates at once; None: not watched."""

    def call_s(self) -> float:
        """Seconds of the next call."""


class Step(Protocol):
    """A step that can be run here."""

    @property
    def name(self) -> str:
        """What people call it."""

    def started(self) -> Started:
        """Compiled, or ready in some other way."""


@dataclass(frozen=True)
class TrainingStep:
    """A training step to be jitted: `fn(*args)` returns the new donated arguments, then the loss.

    The donated arguments (parameters, optimizer state) are updated in place. The other arguments
    are a batch of data; one batch repeated would find its embedding rows in the caches, as training
    never does, so a step may bring more `batches` to rotate through.
    """

    name: str
    fn: Callable[..., tuple[Any, ...]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    # values of the arguments that are not donated; `args` holds the first
    batches: tuple[tuple[Any, ...], ...]

    def next_args(self, calls: int, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the next call, after `calls` calls; `outputs` are the last one's."""
        # the loss comes after the last of them
        renewed = dict(zip(self.donate_argnums, outputs, strict=False))
        batch = iter(self.batches[calls % len(self.batches)])
        return tuple(renewed[at] if at in renewed else next(batch) for at in range(len(self.args)))

    def started(self) -> Started:
        """Compiled by JAX."""
        from hybridperf_calibration.training_steps.compiled import CompiledStep

        return CompiledStep(self)


STRICT = ConfigDict(strict=True, extra="forbid")  # of dataclasses that files are read into
Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]  # of an MLP's layers
Checked = TypeVar("Checked")


def read_objects(path: Path, example: str) -> list[dict[str, Any]]:
    """The list of JSON objects in a file; `example` says what they are.

    Raises: InputError: there is no such list.
    """
    try:
        objects = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected {example}") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}; expected {example}") from error
    if not objects or not isinstance(objects, list) or {type(one) for one in objects} != {dict}:
        raise InputError(f"{path} must be a list of {example}")
    return objects


def checked(kind: type[Checked], values: Any, where: str) -> Checked:
    """`values` of a JSON object as the dataclass `kind`.

    Raises: InputError: the first mistake, after `where`.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        place, problem = ".".join(map(str, first["loc"])), first["msg"]
        if first["type"] == "unexpected_keyword_argument":
            known = ", ".join(field.name for field in dataclasses.fields(cast(Any, kind)))
            expected = f"; expected some of {known}" if len(first["loc"]) == 1 else ""
            problem = f"unknown field {place!r}{expected}"
        elif first["type"] == "value_error":  # a sentence of the dataclass' own
            problem = problem.removeprefix("Value error, ")
        elif first["type"] == "missing":
            problem = f"field {place!r} is missing"
        else:
            problem = f"{place}: {problem}, got {first['input']!r}"
        raise InputError(f"{where}: {problem}") from error
