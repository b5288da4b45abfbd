"""The header of a GGUF file, the format of llama.cpp: a model's sizes as keys of a `config.json`,
and how many bytes of its weights are in which number format. Weights are not read.

    "GGUF", version, number of tensors, number of facts
    facts      name, type, value: the architecture, sizes, the words of the tokenizer
    tensors    name, sizes, number format, place

all little-endian. What names and numbers mean: `gguf.toml`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from hybridperf.io import InputError, shipped_toml
from hybridperf.workloads.transformer.safetensors import Stored

_MAGIC = b"GGUF"
_TEXT, _LIST = 8, 9  # types of values
_VERSIONS = (2, 3)
_MOST = 2**20  # tensors or facts: the largest published models have some thousands
_LONGEST = 2**20  # bytes of a text
_MOST_SIZES = 8  # of a tensor
_KEPT = 2**12  # items of a list: those that say one number for each layer


@dataclasses.dataclass(frozen=True)
class Header:
    """What a file says of its model."""

    facts: dict[str, Any]  # long lists as their length alone
    stored: Stored
    tied: bool  # whether the head has no matrix of its own

    @property
    def scheme(self) -> str:
        """How its weights are stored, as rows of served models call it; "" for a way of none."""
        return str(_words()["schemes"].get(str(self.facts.get("general.file_type")), ""))


class _NotRead(ValueError):
    """Why a header is none."""


def read_header(path: str | os.PathLike) -> Header:
    """The header of a GGUF file; `InputError` for any other file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _header(file)
    except FileNotFoundError as error:
        raise InputError(f"expected a GGUF file at {path}, found none; check the path") from error
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot read {path}: {why}; check the path") from error
    except (_NotRead, UnicodeDecodeError) as error:
        what = "a text of it is none" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(
            f"expected a GGUF file of version 2 or 3, got {path}: {what}; download it again or give"
            " the model's config.json"
        ) from error


def config_of(header: Header) -> dict[str, Any]:
    """What a `config.json` of the model would say.

    Raises:
        InputError: for an architecture that is not known.
    """
    facts, words = header.facts, _words()
    name = str(facts.get("general.architecture", ""))
    if name not in words["architectures"]:
        known = ", ".join(words["architectures"])
        raise InputError(
            f"expected a GGUF file of an architecture among {known}, got {name or 'none'}; give the"
            " model's config.json"
        )
    kinds = words["architectures"][name]
    kind = next(one for one in kinds if not one.get("where") or facts.get(f"{name}.{one['where']}"))
    config = {"model_type": kind["model_type"], "tie_word_embeddings": header.tied}
    own = {key: facts.get(f"{name}.{key}") for key in words["keys"]}
    own["vocab_size"] = own["vocab_size"] or facts.get("tokenizer.ggml.tokens")
    for key, value in own.items():
        if isinstance(value, list):  # one for each layer
            if len(set(value)) > 1:
                raise InputError(
                    f"expected one {name}.{key} of all layers in a GGUF file, got several; give"
                    " the model's config.json"
                )
            value = value[0] if value else None
        config |= dict.fromkeys(words["keys"][key], value) if value is not None else {}
    if "kv_lora_rank" in config:  # keys of a token: a part with its place and one without
        turned = facts.get(f"{name}.rope.dimension_count", 0)
        length = facts.get(f"{name}.attention.key_length_mla") or config.get("head_dim", 0)
        value_length = facts.get(f"{name}.attention.value_length_mla")
        config["v_head_dim"] = value_length or facts.get(f"{name}.attention.value_length")
        config |= {"qk_rope_head_dim": turned, "qk_nope_head_dim": length - turned}
    return config


@functools.cache
def _words() -> dict[str, Any]:
    return shipped_toml(__package__, "gguf.toml")


def _header(file: BinaryIO) -> Header:
    if file.read(4) != _MAGIC:
        raise _NotRead("it does not begin with the letters GGUF")
    (version,) = _unpacked(file, "I")
    if version not in _VERSIONS:
        raise _NotRead(f"its version is {version}")
    tensors, facts = _unpacked(file, "QQ")
    if max(tensors, facts) > _MOST:
        raise _NotRead(f"it claims {max(tensors, facts):,} tensors or facts")
    said = {}
    for _ in range(facts):
        name = _text(file)
        said[name] = _value(file, *_unpacked(file, "I"))
    formats, names, found, numbers = _words()["formats"], set[str](), dict[str, int](), 0
    for _ in range(tensors):
        names.add(_text(file))
        (count,) = _unpacked(file, "I")
        if count > _MOST_SIZES:
            raise _NotRead(f"a tensor of it has {count} sizes")
        size = math.prod(_unpacked(file, "Q" * count))
        kind, _ = _unpacked(file, "IQ")
        called, block, block_bytes = formats.get(str(kind), (f"format {kind}", 1, 0))
        found[called] = found.get(called, 0) + size // block * block_bytes
        numbers += size
    return Header(said, Stored(1, numbers, found), "output.weight" not in names)


def _value(file: BinaryIO, kind: int) -> Any:
    """A fact's value; of a list of words or a long one its length."""
    letters = _words()["values"]
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        of, count = _unpacked(file, "IQ")
        if of == _TEXT and count <= _MOST:
            for _ in range(count):
                _text(file)
            return count
        if str(of) in letters and count <= _MOST:
            letter = letters[str(of)]
            if count <= _KEPT:
                return list(_unpacked(file, letter * count))
            _read(file, count * struct.calcsize(letter))
            return count
        raise _NotRead(f"a list of it has {count:,} items of type {of}")
    if str(kind) not in letters:
        raise _NotRead(f"a value of it is of type {kind}")
    return _unpacked(file, letters[str(kind)])[0]


def _text(file: BinaryIO) -> str:
    (length,) = _unpacked(file, "Q")
    if length > _LONGEST:
        raise _NotRead(f"a text of it claims {length:,} bytes")
    return _read(file, length).decode()


def _unpacked(file: BinaryIO, letters: str) -> tuple[Any, ...]:
    form = f"<{letters}"
    return struct.unpack(form, _read(file, struct.calcsize(form)))


def _read(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise _NotRead("it ends within its header")
    return found
