"""Headers of safetensors files: how many numbers of a checkpoint are in which format, and their
bytes. Weights are not read.

    8 bytes     length of the header, little-endian
    header      JSON: name of a tensor -> dtype, shape, data_offsets (bytes after the header)
    data        all of it, to the end of the file
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hybridperf.io import InputError, parse_json
from hybridperf.io.budget import TooLarge

_LENGTH_BYTES = 8
_LONGEST = 100_000_000  # bytes of a header, by the format
_ABOUT = "__metadata__"


@dataclasses.dataclass(frozen=True)
class Stored:
    """A checkpoint's weights as they lie in files."""

    files: int
    numbers: int  # elements of all tensors; several are packed into one where whole ones hold bits
    bytes_by_format: dict[str, int]

    @property
    def weights_bytes(self) -> int:
        return sum(self.bytes_by_format.values())


def stored_in(folder: Path) -> Stored | None:
    """What the checkpoint in a folder holds; None where no file of it is there.

    Raises:
        InputError: a file is cut off or damaged.
    """
    paths = sorted(folder.glob("*.safetensors"))
    return read_stored(paths) if paths else None


def read_stored(paths: Iterable[str | os.PathLike]) -> Stored:
    """What files of a checkpoint hold together."""
    numbers, found, files = 0, Counter[str](), [*map(Path, paths)]
    for path in files:
        try:
            own, own_bytes = _header(path)
        except FileNotFoundError as error:
            raise InputError(f"expected weights at {path}, found none; check the path") from error
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"cannot read {path}: {why}; check the path") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = " ".join(str(error).split())
            raise InputError(
                f"expected a safetensors file, got {path}: it is damaged ({why}); download it again"
            ) from error
        numbers += own
        found.update(own_bytes)
    return Stored(len(files), numbers, dict(found))


def _header(path: Path) -> tuple[int, dict[str, int]]:
    """(numbers, bytes by format) of one file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(_LONGEST, size - _LENGTH_BYTES):
            raise ValueError(f"its header would be {length:,} bytes of {size:,}")
        try:
            content = parse_json(file.read(length))
        except TooLarge as error:
            raise InputError(f"{path}: {error}") from error
    numbers, found, end = 0, Counter[str](), 0
    for name, tensor in content.items():
        if name == _ABOUT:
            continue
        first, last = map(int, tensor["data_offsets"])
        if not 0 <= first <= last:
            raise ValueError(f"{name[:80]} lies from {first} to {last}")
        numbers += math.prod(map(int, tensor["shape"]))
        found[str(tensor["dtype"]).lower()] += last - first
        end = max(end, last)
    if _LENGTH_BYTES + length + end > size:
        raise ValueError(f"{size:,} of {_LENGTH_BYTES + length + end:,} bytes are there")
    return numbers, dict(found)
