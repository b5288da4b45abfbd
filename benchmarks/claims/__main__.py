"""Recompute a claim of accuracy from public measurements:

    python -m benchmarks.claims NAME --data ../shared/data [--out FOLDER] [--quick] [--tasks A,B]
    python -m benchmarks.claims page FOLDER... --out docs/accuracy.md

Each claim is a module beside this file whose `run` takes what it needs of the options below; what a
claim does not take is refused. `python -m benchmarks.claims` lists the claims.
"""

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridperf.cli.app import sentence
from hybridperf.cli.common import compilation_cache, keep_files, names_in
from hybridperf.io import InputError, unknown
from hybridperf.model import model_or_datasheet

_HERE = Path(__file__).parent


def _numbers(text: str) -> list[int]:
    if strange := [one for one in names_in(text) if not one.isdecimal()]:
        raise InputError(f"expected numbers, such as 0,50,200, got {strange[0]!r}; mend them")
    return [int(one) for one in names_in(text)]


# option: (argument of `run`, how its text is read, what it is)
_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "tasks": ("tasks", names_in, "some of a claim's tasks"),
    "model": ("model", str, "folder of a calibration of this machine, or a shipped one"),
    "families": ("families", names_in, "families of ops"),
    "leave": ("splits", names_in, "which devices are left out"),
    "sizes": ("sizes", names_in, "rows of the device that are fitted on: 0,20,50,200,10%%,all"),
    "devices": ("devices", names_in, "devices to leave out"),
    "systems": ("systems", names_in, "systems to leave out"),
    "rows": ("rows", _numbers, "rows of the device or system that are fitted on"),
    "models": ("tasks", int, "of `sharded`: how many models"),
    "placements": ("to_shard", int, "of `sharded`: models whose placements compete"),
    "passes": ("passes", int, "of `sharded`: times that the models are measured"),
}


def claims() -> dict[str, str]:
    """Each claim and the first line of what its module says of it."""
    found = {}
    for path in sorted(_HERE.glob("[a-z]*.py")):
        module = ast.parse(path.read_text())
        if any(
            getattr(one, "name", None) == "run"
            or (isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == "run")
            for one in module.body
        ):
            found[path.stem] = (ast.get_docstring(module) or "").split("\n")[0]
    return found


def run(arguments: list[str]) -> None:
    """The claim that the arguments name."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.claims", description=__doc__, formatter_class=as_written
    )
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("results", nargs="*", type=Path, help="of `page` and `repeats`: folders")
    parser.add_argument("--data", type=Path, help="folder of measured data")
    parser.add_argument("--out", type=Path, help="folder of results; of `page`: the page")
    parser.add_argument("--quick", action="store_true", help="a small part, a minute")
    for name, (_, _, words) in _OPTIONS.items():
        parser.add_argument(f"--{name}", default="", help=words)
    asked, known = parser.parse_args(arguments), claims()
    if not asked.name:
        print(*(f"{name:<16}{words}" for name, words in known.items()), sep="\n")
        return
    if asked.name not in known:
        raise unknown("claim", asked.name, known, f"known are {', '.join(known)}")
    if asked.data is not None and not asked.data.is_dir():
        raise InputError(f"expected a folder in --data, found none at {asked.data}; check the path")
    claim = importlib.import_module(f"benchmarks.claims.{asked.name}")
    takes = inspect.signature(claim.run).parameters
    given = {word: read(text) for name, (word, read, _) in _OPTIONS.items()
             if (text := getattr(asked, name))}  # fmt: skip
    given |= {"quick": True} if asked.quick else {}
    if strange := [name for name in given if name not in takes]:
        raise InputError(f"expected no {strange[0]} with {asked.name}, which does not take it")
    given["out"] = asked.out or Path("claims-out") / ("accuracy.md" if asked.name == "page" else "")
    keep_files({"--out": given["out"]}, [asked.data, *asked.results])
    if asked.results and not {"results", "folders"} & {*takes}:
        raise InputError(f"expected no results with {asked.name}, got {asked.results[0]}")
    results = "folders" if "folders" in takes else "results"
    for word, value in (("data", asked.data), (results, asked.results), ("model", asked.model)):
        if word not in takes:
            if value and word != "model":
                raise InputError(f"expected no {word} with {asked.name}, got {value}; leave it out")
        elif value or word == results:
            given[word] = value
        elif takes[word].default is inspect.Parameter.empty:
            raise InputError(f"expected --{word} with {asked.name}, got none; give it")
    if "folder" in takes:  # of the calibration that is judged by its own rows
        given["folder"] = Path(asked.model)
    if takes.get("model") is not None and takes["model"].default is inspect.Parameter.empty:
        given["model"] = model_or_datasheet(asked.model)
    compilation_cache()
    claim.run(**given)


def main() -> None:
    """Run it; an input that cannot be used is one sentence and status 2."""
    try:
        run(sys.argv[1:])
    except (InputError, OSError) as error:
        print(f"benchmarks.claims: {sentence(error)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
