"""A prior as a folder: every family's usual knobs and networks, with where they come from.
`prior.json` in plain numbers, `prior.npz`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridperf import io
from hybridperf.io.arrays import flat, nested
from hybridperf.learning.prior.family import FamilyPrior

PRIOR_SCHEMA_VERSION = 3  # 3: checksums
_UNCHECKED = 2  # the last version without them
DEFAULT_PRIOR = "prior"  # the one that is installed
CPU_PRIORS = {"jax": "cpu_jax", "torch": "cpu_torch"}  # installed ones, by library
NO_PRIOR = "none"
_DOCUMENT, _WEIGHTS = "prior.json", "prior.npz"


@dataclasses.dataclass(frozen=True)
class Prior:
    """What all measured devices say of each family of ops."""

    families: Mapping[str, FamilyPrior]
    provenance: Mapping[str, Any]
    # of machines whose groups share knobs of their memory: log knobs by machine and name
    knobs: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the two files, both or none."""
        arrays = flat({name: family.arrays() for name, family in self.families.items()})
        document = {
            "families": {name: family.document() for name, family in self.families.items()},
            "weights_sha256": io.hash_of(arrays),
            "provenance": dict(self.provenance),
            **({"knobs": dict(self.knobs)} if self.knobs else {}),
        }
        with io.replacing_in(folder) as new:
            io.write_arrays(new / _WEIGHTS, arrays)
            io.write_json(new / _DOCUMENT, "prior", PRIOR_SCHEMA_VERSION, document)


def is_installed(name: str) -> bool:
    """Whether a prior of this name is."""
    installed = io.installed_hardware()
    return installed is not None and (installed / name / _DOCUMENT).exists()


def load_prior(name: str | os.PathLike) -> Prior:
    """A prior by folder, or by the name of an installed one."""
    installed = io.installed_hardware()
    places = [Path(name), *([installed / str(name)] if installed else [])]
    folder = next((place for place in places if os.path.exists(place / _DOCUMENT)), None)
    if folder is None:
        paths = installed.glob(f"*/{_DOCUMENT}") if installed else ()
        known = [*sorted(path.parent.name for path in paths), NO_PRIOR]
        advice = "give the folder of a prior, the name of an installed one, or none"
        raise io.unknown("prior", str(name), known, advice)
    with io.settled(folder):
        document = io.read_json(folder / _DOCUMENT, "prior", PRIOR_SCHEMA_VERSION, _UNCHECKED)
        with io.undamaged(folder / _DOCUMENT, "restore it"):
            checked, expected = document["schema_version"] > _UNCHECKED, document["weights_sha256"]
            stored = nested(io.read_arrays(folder / _WEIGHTS, str(expected), checked=checked))
            families = {
                family: FamilyPrior.read(stored[family], content)
                for family, content in document["families"].items()
            }
            knobs = {
                str(machine): {str(name): float(value) for name, value in of.items()}
                for machine, of in document.get("knobs", {}).items()
            }
            return Prior(families, dict(document["provenance"]), knobs)
