"""What one framework that trains does: a TOML file each in this folder, which is all that a further
one needs. Its name is the file's, as tables of training steps call it.

    kernels      the set of kernels that it launches, of `workloads/transformer/frameworks.toml`
    own_kernels  a set of its own, called as it is: those switches that differ from the set that it
                 is `like` (`Framework` of `workloads/transformer/framework.py` has all)
    like         as another framework, but for what it settles itself
    release      the one that is assumed where none is said (year and month)
    releases     from which release on it is another framework
    in_FORMAT    what holds in one number format alone
    swiglu_in_FORMAT  what it does with gated experts without biases in one number format
    effects      step effects whose medians are a `factor` of the usual ones in its steps, on some
                 architectures (`archs`) or on any, with their source (`model/step_effects.py`)
    own_effects  step effects that no other framework's steps have: median and width of what is
                 believed, with its source
    stalls       how often its pipelines stall (`workloads/transformer/waits.py`)

and fields of a `TransformerConfig` or a layout, which it settles where a row says nothing, or else
habits that code asks for (`does`). Data alone: what each means is said where it is read.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from typing import Any

# of a framework alone, not of those that are like it
_OWN = ("release", "releases", "effects", "own_effects", "own_kernels")


@functools.cache
def training_frameworks() -> Mapping[str, Mapping[str, Any]]:
    """What each settles, by name: over the one that it is like, `framework` its name."""
    found = {}
    for name, said in files_of(__package__, "hybridperf/training-framework").items():
        own = {"kernels": name} if "own_kernels" in said else {}
        found[name] = {**own, **said, "framework": name}
    return over_likes(found, _OWN)


def files_of(package: str, schema: str) -> dict[str, dict[str, Any]]:
    """What the TOML files of a package's folder say, by their names; all are of one schema."""
    found = {}
    for file in sorted(resources.files(package).iterdir(), key=lambda one: one.name):
        name = file.name.removesuffix(".toml")
        if name != file.name:
            said: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
            assert said.pop("schema") == schema, file
            assert said.pop("schema_version") == 1, file
            found[name] = said
    return found


def over_likes(
    known: Mapping[str, Mapping[str, Any]], own: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Entries by name, each over the one that it is `like`, whose keys `own` it does not share."""
    found = {}
    for name, said in known.items():
        like = known.get(str(said.get("like", "")), {})
        found[name] = {key: value for key, value in like.items() if key not in own} | {
            key: value for key, value in said.items() if key != "like"
        }
    return found


def release_number(release: str) -> tuple[int, ...]:
    """A release's leading numbers, by which releases are ordered: "0.5.10.post1" is (0, 5, 10);
    none of a word such as "nightly".
    """
    leading = re.match(r"v?(\d+(?:\.\d+)*)", release)
    return tuple(int(one) for one in leading[1].split(".")) if leading else ()


def last_release(known: Iterable[str], release: str) -> str:
    """The last of the known releases, oldest first, that is no later than `release`; "": none."""
    number = release_number(release)
    return next((one for one in [*known][::-1] if number and release_number(one) <= number), "")


def is_release(version: str, release: str) -> bool:
    """Whether a version is of a release: "1.1.0rc2" is of "1.1" and of itself, not of "1.1.0rc3";
    one that is not told ("") is of "".
    """
    number, numbers = release_number(version), release_number(release)
    alone = bool(numbers) and release == ".".join(map(str, numbers))
    return version == release or (alone and number[: len(numbers)] == numbers)
