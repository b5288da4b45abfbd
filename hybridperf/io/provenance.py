"""Where a fit comes from: when, by which versions, from which rows."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import platform
from typing import Any

import hybridperf
from hybridperf.io.later import pd


def origin(measurements: pd.DataFrame | None) -> dict[str, Any]:
    """Provenance of any fit: when, by which versions, from which rows."""
    versions = {"hybridperf": hybridperf.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in ("jax", "flax", "numpy")}
    origin: dict[str, Any] = {"date": datetime.date.today().isoformat(), "versions": versions}
    if measurements is not None:
        values = pd.util.hash_pandas_object(measurements, index=False).to_numpy().tobytes()
        names = repr(list(measurements.columns)).encode()
        origin["rows_sha256"] = hashlib.sha256(names + values).hexdigest()[:16]
    return origin
