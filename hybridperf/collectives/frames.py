"""Tables of collectives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.model import COLUMNS, CollectiveModel
from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts

if TYPE_CHECKING:
    import pandas


def predict_collectives(rows: Rows, model: CollectiveModel | str | os.PathLike) -> pandas.DataFrame:
    """Seconds of collectives: adds `predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s,
    in_range, note`.

        rows = [{"collective": "all_reduce", "bytes": 2**28, "n_gpus": n} for n in (2, 4, 8)]
        hp.predict_collectives(rows, "dgx_h100")

    Args:
        rows: R collectives: collective, bytes, n_gpus, n_nodes, lib, dtype, ...
        model: a model of links, its folder, or the name of a calibration or a system.

    Raises:
        InputError: for a model that nobody knows, or a table that lacks a column.
    """
    return in_parts(as_frame(rows), _collectives(model), "collectives")


def _collectives(model: CollectiveModel | str | os.PathLike) -> Predict:
    loaded = model if isinstance(model, CollectiveModel) else collectives_by_name(str(model))
    return lambda part, _: loaded.predict(part)


QUESTION = Question(_collectives, COLUMNS, settings=("model",))
