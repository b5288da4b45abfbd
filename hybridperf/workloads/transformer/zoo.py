"""Published models by name: their sizes lie in `transformers.toml`, each with where it was
published and how many parameters.

A name is looked up in lower case with every run of other characters as one hyphen, so "LLAMA3_70B"
and "llama3-70b" are one. Names on the Hugging Face hub may say more than sizes: whose a model is,
that it follows instructions, its weights' number format. A path to a .toml or .json file describes
a model of one's own in the same fields, or is the `config.json` of a model on the hub
(`huggingface.py`); a folder is asked for its config.json, a .gguf file for its header (`gguf.py`),
and a name on the hub that we do not know for its config in the hub's cache of this machine.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hybridperf.io import InputError, parse_json, parse_toml, read_text, shipped_toml, unknown
from hybridperf.workloads.transformer import gguf, huggingface
from hybridperf.workloads.transformer.fields import MOST_LAYERS, check_whole
from hybridperf.workloads.transformer.shape import (
    Compressed,
    Diffusion,
    Heads,
    Latent,
    Scan,
    TransformerShape,
)

HABITS = "defaults of its family assumed: "  # how the note of a user's model begins
_LLAMA = {"gated": True, "tied": False, "positions": "rotary", "norm": "rmsnorm", "biases": False}
# of a model that does not name them; a GPT's are the fields' own defaults
_HABITS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "moe": _LLAMA,
    "t5": {"positions": "relative", "norm": "rmsnorm", "biases": False},
    "bert": {"head": "mlm", "token_types": 2, "embedding_norm": True, "pooler": True},
    "vit": {"head": "classes"},
}
_PARTS: dict[str, Callable[..., Any]] = {
    "latent": Latent, "scan": Scan, "full_heads": Heads, "compressed": Compressed,
    "diffusion": Diffusion,
}  # fmt: skip
_ABSENT = {"latent": {"query_rank": None}}  # what a part may leave out
_FIELDS = {field.name for field in dataclasses.fields(TransformerShape)}
# words of a name on the hub that say nothing of sizes; versions do for some, so these go last
_UNSIZED = re.compile(
    r"(?:^meta|-(?:instruct|chat|it|hf|base|thinking|dynamic|quantized(?:\.w\d+a\d+)?|preview"
    r"|\d+k|\d{4}|(?:nv|mx)?fp[48](?:-kv)?|w-mxfp4-a-fp8|bf16|fp16|awq|gptq|int[48]|bnb-4bit"
    r"|w\d+a\d+))(?=-|\.|$)"
)
# what tables of training runs append: adapters, a release, routing, multi-token prediction, nodes
_RUN = re.compile(
    r"(?:-lora|-2\d\.\d\d(?:\.\d\d)?|-\d+-nodes?|-tokendrop|-dropless|-w-(?:o-)?mtp)+$"
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
CONFIG = "config.json"
_VERSION = re.compile(r"-v\d+(?:\.\d+)*(?=-|$)")
_NEEDED = [
    one.name for one in dataclasses.fields(TransformerShape) if one.default is dataclasses.MISSING
]


def shape_names() -> list[str]:
    """Names of the models whose sizes we ship."""
    return [name for name in _entries() if name not in _aliases()]


def other_shape_names(name: str) -> list[str]:
    """What else one of them is called."""
    return list(_entries()[name].get("aliases", ()))


def load_shape(name: str | os.PathLike) -> TransformerShape:
    """A Transformer's sizes by its published name ("llama3-8b"), or from a .toml or .json file of
    them, from the `config.json` of a model on the Hugging Face hub or the folder it lies in, by the
    name of a model whose config the hub's cache holds, or from a .gguf file.

    `hybridperf models` lists the names.

    Raises:
        InputError: when no such model or file is known; it suggests the nearest name.
    """
    text = str(name)
    path = file_of(text)
    if path is None:
        key = _published_key(text)
        if not key:
            known = (
                f"expected one of {len(shape_names())} published shapes, a config.json or its"
                " folder, a .gguf file, or a .toml file of sizes"
            )
            if _HUB_NAME.fullmatch(text):
                known += f"; `hf download {text} config.json` fetches that of a model on the hub"
            raise unknown("model", text, [*_entries(), *_aliases()], known)
        return _published(key)
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        return _of_config(path, gguf.config_of(header), path.stem)
    content = _read(path)
    if huggingface.is_config(content):
        named = path.resolve().parent.name if path.stem == "config" else path.stem
        a_file = text.endswith((path.name, ".safetensors"))
        return _of_config(path, content, named if a_file else Path(text).name or named)
    own_name, entry = _own_sizes(path, content)
    return shape_of(own_name, entry, f"{path}: ")


def file_of(name: str | os.PathLike) -> Path | None:
    """The file that a name of a model means; None for a published name, or one that nobody knows.

    A published name goes before a folder that is called so, unless it is a path.
    """
    text = str(name)
    if text.endswith((".toml", ".json", ".gguf")):
        return Path(text)
    if text.endswith(".safetensors"):  # its sizes are told beside it
        return Path(text).parent / CONFIG
    a_path = os.sep in text and os.path.isfile(os.path.join(text, CONFIG))
    if not a_path and _published_key(text):
        return None
    folder = Path(text) if os.path.isdir(text) else _hub_folder(text)
    return None if folder is None else folder / CONFIG


def _published_key(text: str) -> str:
    return next((one for one in _keys(text) if one in _entries()), "")


def _hub_folder(name: str) -> Path | None:
    """Where the hub's cache of this machine holds the newest files of a model; None: nowhere."""
    homes = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(homes, "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    if not _HUB_NAME.fullmatch(name):
        return None
    kept = [*cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/{CONFIG}")]
    return max(kept, key=lambda one: one.stat().st_mtime).parent if kept else None


@functools.cache
def _published(name: str) -> TransformerShape:
    return _shape(name, _entries()[name], "")


def is_config_file(path: str | os.PathLike) -> bool:
    """Whether a file is a config of Hugging Face."""
    return str(path).endswith(".json") and huggingface.is_config(_read(Path(path)))


def shape_of(name: str, fields: dict[str, Any], where: str = "") -> TransformerShape:
    """A user's model; its family's habits, listed in its note, stand in for missing fields.

    Args:
        name: of the model.
        fields: those of `TransformerShape`.
        where: how errors begin.
    """
    return _shape(name, _with_habits(fields), where)


def published_as(shape: TransformerShape, name: str = "") -> str:
    """Name of the published model that a shape is of, whatever its sequences; "" of none.

    `name`: of several alike this one, else the shape's own.
    """
    known = shape_names()
    first = (one for one in (name, shape.name) if one in known)
    alike = (one for one in (*first, *known) if load_shape(one).same_model(shape))
    return next(alike, "")


def _of_config(path: Path, config: dict[str, Any], name: str) -> TransformerShape:
    """A model by its `config.json`, or what one would say of the file."""
    try:
        fields = huggingface.fields_of(config)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except TypeError as error:
        raise InputError(f"{path}: sizes of a config are whole numbers ({error})") from error
    return _shape(name, fields | {"note": HABITS + fields["note"]}, f"{path}: ")


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    """Fields by model: what its series shares, its own, and the habits of its family."""
    entries: dict[str, dict[str, Any]] = {}
    for series in shipped_toml(__package__, "transformers.toml")["series"]:
        models, more = series.pop("models"), series.pop("more", {})
        shared = _HABITS.get(series["family"], {}) | series
        entries |= {name: shared | own | more.get(name, {}) for name, own in models.items()}
    return entries


@functools.cache
def _aliases() -> dict[str, str]:
    entries = _entries().items()
    return {_plain(alias): name for name, one in entries for alias in one.get("aliases", ())}


def _keys(name: str) -> Iterator[str]:
    """What a name may be called here, as it stands or without what a hub's name says besides."""
    plain = _plain(name)
    hub = _plain(name.rsplit("/", 1)[-1])
    sized = _UNSIZED.sub("", hub).strip("-")
    for one in (plain, _RUN.sub("", plain), hub, sized, _VERSION.sub("", sized)):
        yield _aliases().get(one, one)


@functools.cache
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def _with_habits(entry: dict[str, Any]) -> dict[str, Any]:
    """A user's model with its family's habits, listed in the note, for missing fields."""
    habits = _HABITS.get(str(entry.get("family")), {})
    taken = {field: value for field, value in habits.items() if field not in entry}
    if not taken:
        return entry
    words = {
        name: str(one).lower() if isinstance(one, bool) else one for name, one in taken.items()
    }
    assumed = ", ".join(f"{field} {word}" for field, word in words.items())
    own = f"; {entry['note']}" if isinstance(entry.get("note"), str) and entry["note"] else ""
    return {**entry, **taken, "note": f"{HABITS}{assumed}{own}"}


def _shape(name: str, entry: dict[str, Any], where: str) -> TransformerShape:
    fields = {"name": name, **{key: value for key, value in entry.items() if key != "aliases"}}
    for field in fields:
        if field not in _FIELDS:
            known = "the fields are those of TransformerShape"
            raise unknown(f"{where}field", field, sorted(_FIELDS), known)
    for part, kind in _PARTS.items():
        if isinstance(given := fields.get(part), dict):
            listed = {
                key: tuple(one) if isinstance(one, list) else one for key, one in given.items()
            }
            try:
                fields[part] = kind(**{**_ABSENT.get(part, {}), **listed})
            except (TypeError, InputError) as error:
                sentence = f"{where}{part} of {name} has the fields of {part.capitalize()}: {error}"
                raise InputError(sentence) from error
    if "mixers" in fields:  # repeated to the last one
        pattern, layers = fields["mixers"], fields.get("layers", 0)
        if isinstance(pattern, str):  # letters of a `hybrid_override_pattern`
            pattern = huggingface.mixers_of(name, pattern)
        if not isinstance(pattern, list | tuple):
            raise InputError(f"{where}mixers of {name} must be a list of words, got {pattern!r}")
        check_whole(f"{where}layers of {name}", layers, 0, MOST_LAYERS)
        fields["mixers"] = tuple(itertools.islice(itertools.cycle(pattern), layers))
    if missing := [field for field in _NEEDED if field not in fields]:
        raise InputError(
            f"{where}{name} lacks {', '.join(missing)}; every model needs {', '.join(_NEEDED)}"
        )
    try:
        return TransformerShape(**fields)
    except InputError as error:
        raise InputError(f"{where}{error}") from error


def _read(path: Path) -> dict[str, Any]:
    parse = parse_json if path.suffix == ".json" else parse_toml
    fields = "see hybridperf/workloads/transformer/transformers.toml for the fields"
    content = read_text(path, "file of a model's sizes", parse, fields)
    if not isinstance(content, dict):
        raise InputError(f"expected the sizes of one model in {path}, found none; split the file")
    return content


def _own_sizes(path: Path, content: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    nested = {name: one for name, one in content.items() if isinstance(one, dict)}
    for part in _PARTS:
        nested.pop(part, None)
    if len(nested) > 1:
        raise InputError(
            f"expected the sizes of one model in {path}, found {len(nested)}; split the file"
        )
    if nested:
        return next(iter(nested.items()))
    return str(content.get("name", path.stem)), content
