"""What launching work costs a host, as traces of its runs showed it, and the file that keeps it in
a model folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import NonNegativeFloat, PositiveInt

from hybridperf.hardware.specs import Spec
from hybridperf.io import InputError, read_json, undamaged, write_json

HOST_FILE = "host.json"
HOST_SCHEMA_VERSION = 3  # 2: checksum; 3: fetch_s
_LEAST_SEEN = 3  # times that an overhead of one kind of op needs to speak for itself


class Spread(Spec):
    """How long something took over several times."""

    mean_s: NonNegativeFloat
    std_s: NonNegativeFloat
    median_s: NonNegativeFloat
    count: PositiveInt


class Overhead(Spec):
    """One overhead of a host: over all kinds of ops (or calls), and of each."""

    shared: Spread | None  # None: no such thing was seen
    by_kind: dict[str, Spread]

    def of(self, kind: str) -> Spread:
        """Of one kind of op; that of all where it was seen less than three times."""
        own = self.by_kind.get(kind)
        found = own if own is not None and own.count >= _LEAST_SEEN else self.shared or own
        if found is None:
            got = f"got one that never did (asked for {kind}); fit more traces"
            raise InputError(f"expected a host that has shown this overhead, {got}")
        return found


class Host(Spec):
    """CPU seconds that issuing work to a device costs, as traces of a framework showed.

    The overheads T1 to T5 of Lin et al. (arXiv:2201.07821, DLRM performance on GPUs).
    """

    source: str  # the traces that it was read from
    profiler_s: NonNegativeFloat  # seconds per record that profiling cost; already subtracted
    # T1: from the end of an outermost op to the next on its thread; None: no two ops came close
    between_ops_s: Spread | None
    before_launch_s: Overhead  # T2, by op: from its start to its first launch
    after_launch_s: Overhead  # T3, by op: from the end of its last launch to its end
    launch_call_s: Overhead  # T4, by call
    between_launches_s: Overhead  # T5, by op: from the end of a launch to the next of the op
    without_launch_s: Overhead  # by op: all of it, of ops that launch nothing (also T5)
    fetch_s: Spread | None = None  # one number from an idle device, from the call to its return

    def seconds(self, overhead: str, names: Sequence[str]) -> float:
        """Mean of one overhead, by the first of an op's names that it was seen under."""
        found: Overhead = getattr(self, overhead)
        known = next((name for name in names if name in found.by_kind), names[0])
        try:
            return found.of(known).mean_s
        except InputError as error:
            # a host on which no op launches twice has nothing between two launches
            if overhead == "between_launches_s":
                return 0.0
            raise InputError(f"{overhead} of host {self.source}: {error}") from error

    def save(self, folder: str | os.PathLike) -> None:
        """Write `host.json` into a model folder."""
        write_json(Path(folder) / HOST_FILE, "host", HOST_SCHEMA_VERSION, self.model_dump())


def load_host(folder: str | os.PathLike) -> Host:
    """The host of a model folder; `InputError` where it has none, or a damaged one."""
    path = Path(folder) / HOST_FILE
    content = read_json(path, "host", HOST_SCHEMA_VERSION, unchecked=1)
    facts = {key: content[key] for key in content if key not in ("schema", "schema_version")}
    with undamaged(path, "fit the host again"):
        return Host(**facts)
