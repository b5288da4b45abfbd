"""What one framework, GPU or model family does stands in its own file, under no name in code.

Names come from the files that list them, so that the check grows with these. Looked through are
strings and identifiers of every module, docstrings and comments left out. A string of more than two
words is prose: a message, a source, help with an example; how many of those say a name is counted
apart. Readers of what others wrote say names, and judges of published claims.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridperf
from hybridperf.fields.frameworks import training_frameworks
from hybridperf.ops.frameworks import serving_frameworks
from hybridperf.workloads.transformer.zoo import shape_names

ROOT = Path(hybridperf.__file__).parent
READERS = (
    "traces/",
    "training/launch_files/",
    "validate/",
    "workloads/programs/torch/published.py",  # models of an installed library
    "workloads/transformer/zoo.py",
    "workloads/transformer/huggingface.py",
    "fields/",
    "workloads/transformer/sizes.py",  # where the kinds of models are defined, the field `family`
)
# words of names that mean other things, too
USUAL = {
    "eager", "flash", "flash_attention", "llm", "gpt", "opt", "vit", "dit", "mlperf", "xla", "jax",
    "titan", "vega", "quadro", "tpu", "knl", "nemo", "maxtext",
}  # fmt: skip
# names that modules still say: what is not mended yet. Less is progress, more is not
NAMES: dict[str, int] = {}
PROSE = 18  # sources of beliefs, and examples in messages


def toml(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text())


def first_words(names: Iterator[str] | set[str]) -> set[str]:
    return {re.split(r"[_\-. ]", name.lower())[0] for name in names}


def frameworks() -> set[str]:
    launched = {path.stem for path in (ROOT / "training/launch_files").glob("*.toml")}
    trained = set(training_frameworks())
    names = {*serving_frameworks(), *launched, *trained, "tensorrt"}
    return {name.replace("-", "_").lower() for name in names} | first_words(names)


def gpus() -> set[str]:
    devices = toml("hardware/devices.toml")
    found = {name: one for name, one in devices.items() if isinstance(one, dict)}
    made = {name for name, one in found.items() if one["kind"] == "gpu"}
    return made | first_words(made) | first_words({found[name]["arch"] for name in made})


def families() -> set[str]:
    return {re.match(r"[a-z]*", name.lower())[0] for name in shape_names()}  # type: ignore[index]


def known() -> set[str]:
    return {one for one in frameworks() | gpus() | families() if len(one) > 2} - USUAL


def said(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(text, whether it is prose) of strings and identifiers."""
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documents:
            yield node.value, len(node.value.split()) > 2
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            if isinstance(text := getattr(node, field, None), str):
                yield text, False


def names_in(text: str, names: re.Pattern[str]) -> int:
    return len(names.findall(text))


def pattern() -> re.Pattern[str]:
    """Names as words, whatever joins these: `_H100_SHARE`, `is_blackwell`, "vllm_kv"."""
    every = sorted(known(), key=len, reverse=True)
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(map(re.escape, every))})(?![a-z])", re.I)


def found() -> tuple[Counter[str], Counter[str]]:
    """Names and names in prose, by module."""
    names, prose, every = Counter[str](), Counter[str](), pattern()
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT).as_posix()
        if module.startswith(READERS):
            continue
        for text, is_prose in said(ast.parse(path.read_text())):
            if count := names_in(text, every):
                (prose if is_prose else names)[module] += count
    return names, prose


def test_no_module_knows_a_framework_a_gpu_or_a_model_by_name() -> None:
    """`pytest -s` prints how many there are."""
    names, prose = found()
    print(dict(names), dict(prose))
    more = {module: count for module, count in names.items() if count > NAMES.get(module, 0)}
    assert not more, "say it in the file of the framework, the device or the model"


def test_prose_says_no_more_names() -> None:
    assert found()[1].total() <= PROSE


@pytest.mark.parametrize(
    "text", ["is_blackwell", "_H100_SHARE", "vllm", "TensorRT", "llama", "B200"]
)
def test_the_check_sees_names(text: str) -> None:
    assert names_in(text, pattern())


@pytest.mark.parametrize("text", ["enabled", "opt", "framework", "adapted"])
def test_the_check_sees_no_others(text: str) -> None:
    assert not names_in(text, pattern())


def test_no_module_sniffs_at_how_a_device_is_called() -> None:
    """`device.startswith("b")` and the like are facts of the device that nobody wrote down."""
    asked = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of, what = ast.unparse(node.func.value), [ast.unparse(one) for one in node.args]
                about = re.search(r"\b(device|gpu|arch|architecture)(\.id|\.name|\.arch)?$", of)
                by_name = about and node.func.attr in ("startswith", "endswith")
                if by_name and what not in (["'.toml'"], ["'cpu'"]) and "'" in what[0]:
                    asked[f"{path.relative_to(ROOT)}:{node.lineno}"] = ast.unparse(node)
    assert not asked


def test_public_docstrings_say_more_than_the_name() -> None:
    """A line of under 26 characters says nothing that the name did not."""
    short = [
        f"{path.relative_to(ROOT)}: {node.name}: {text}"
        for path in sorted((ROOT / "hybridperf").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        and 0 < len(text := ast.get_docstring(node) or "") < 26
    ]  # fmt: skip
    assert not short, "\n".join(short)
