"""Real JAX training steps, and the programs that time them: `run` and `sharded_dlrm`.

Nothing here imports JAX by itself, so that `run` can pin the process first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
        return tuple(
            renewed[position] if position in renewed else next(batch)
            for position in range(len(self.args))
        )


def check_sizes(config: Any) -> None:
    """Refuse sizes that are not positive whole numbers, naming the field; texts pass."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type == "str":
            continue
        for size in value if isinstance(value, tuple) else (value,):
            if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
                raise ValueError(f"{field.name} must be a positive whole number, got {size!r}.")
        if value == ():
            raise ValueError(f"{field.name} must name at least one width, got none.")


def config_from(config_type: type, values: Mapping[str, Any]) -> Any:
    """A workload's config from the plain values of a JSON object; every mistake is one sentence."""
    fields = {field.name: field for field in dataclasses.fields(config_type)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; expected some of {', '.join(fields)}.")
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"field {missing[0]!r} is missing.")
    for name, value in values.items():
        if isinstance(value, list) != (str(fields[name].type).startswith("tuple")):
            expected = "one value" if isinstance(value, list) else "a list of widths"
            raise ValueError(f"{name} must be {expected}, got {value!r}.")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return config_type(**{**values, **lists})
