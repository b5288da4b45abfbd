"""`hybridperf fit-check`: does a model fit on a device, and how fast is it there."""

import dataclasses
from pathlib import Path
from typing import Annotated

from typer import Argument

from hybridperf.cli import common
from hybridperf.cli.manner import printed, result


def fit_check(
    model: Annotated[str, Argument()],
    gpu: Annotated[str, Argument()] = "",
    context: int | None = None,
    batch: int = 1,
    rank: int = 16,
    prices: Path | None = None,
) -> int:
    """Does a model fit on a GPU: to serve it, to train adapters (LoRA), to train all of it; on how
    many at least, how fast, and what is the cheapest way. Without a GPU: this machine's, else some
    that are common.
    """
    from hybridperf.explore.fit_check import fit_check as asked

    common.compilation_cache()
    found = asked(model, gpu or None, context=context, batch=batch, rank=rank, prices=prices)
    result(
        model=found.shape.name, parameters=found.shape.parameters, **found.settings,
        uses=found.uses, cheapest=found.cheapest, basis=found.basis(), remarks=[*found.remarks],
        stored=found.stored and dataclasses.asdict(found.stored),
    )  # fmt: skip
    if printed():
        print(found)
    return 0 if found.answered else common.SOME_ROWS_UNPREDICTED
