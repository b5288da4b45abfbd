"""Sweeps as `hp.sweep` takes them, as specs and as words of the command."""

from pathlib import Path
from typing import Any

from hybridperf.explore.sweeps.spec import SweepSpec, document, read_spec, with_top


def spec_of(
    question: str, fields: Any, model: str = "", top: int | None = None, by: str | None = None,
    **more: Any,
) -> SweepSpec:  # fmt: skip
    settings = {"model": model} if model else {}
    asked = document(question, fields, folder=Path("."), settings=settings, **more)
    return with_top(read_spec(asked), top, by)


def words_of(question: str, fields: dict[str, Any], model: str = "", **more: Any) -> list[str]:
    """A sweep of lists on the command line."""
    given = {"model": model} if model else {}
    lists = {name: one if isinstance(one, list) else [one] for name, one in fields.items()}
    given |= {name: ",".join(map(str, values)) for name, values in lists.items()}
    words = [f"--{name}={said}" for name, said in given.items()]
    for name, said in more.items():
        words += [f"--{name}={one}" for one in (said if isinstance(said, list) else [said])]
    return ["sweep", question, *words]
