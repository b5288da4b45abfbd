"""The project is what it says it is: rooms in order, packages listed, no
pickles, names that work.
"""

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import touched

import hybridperf

ROOT = Path(__file__).parent.parent.parent
LIBRARY = ROOT / "hybridperf"
APPS = ["traces", "training", "serving", "runs", "explore", "page"]  # none imports another
ROOMS = [  # each imports only from those before it
    "io",
    "hardware",
    "fields",
    "ops",
    "learning",
    "collectives",
    "model",
    "engine",
    "workloads",
    "report",
    "traces",
    "training",
    "serving",
    "runs",
    "explore",
    "validate",
    "page",
    "cli",
]


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax."""
    return [*ast.walk(ast.parse(path.read_text()))]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, those inside functions too."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            if node.module.split(".")[0] == "hybridperf":
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def test_every_file_belongs_to_a_room() -> None:
    assert {room_of(path) for path in sources(LIBRARY)} == {*ROOMS, "__init__"}
    assert {path.name for path in LIBRARY.iterdir()} - {*ROOMS, "__pycache__"} == {
        "__init__.py", "__init__.pyi", "py.typed",
    }  # fmt: skip
    # Python binds a loaded folder to the package under its name, over whatever had it
    assert not {*ROOMS} & {*hybridperf.__all__}


def test_few_arrows_join_the_rooms() -> None:
    """Pairs of rooms of which one imports the other; `pytest -s` prints how many."""
    arrows = {
        (room_of(path), module.split(".")[1])
        for path in sources(LIBRARY)
        for _, module in imports(path)
        if module.startswith("hybridperf.") and module.split(".")[1] in ROOMS
    }
    between = {(here, there) for here, there in arrows if here != there and here in ROOMS}
    print(f"{len(ROOMS)} rooms, {len(between)} arrows")
    assert len(ROOMS) <= 18
    assert len(between) <= 108


def test_rooms_import_only_from_rooms_above() -> None:
    for path in (one for one in sources(LIBRARY) if one != LIBRARY / "__init__.py"):
        here = ROOMS.index(room_of(path))
        for line, module in imports(path):
            where = f"{path.relative_to(ROOT)}:{line} imports {module}"
            top, *rest = module.split(".")
            assert top != "hybridperf_calibration", where
            if top == "hybridperf" and rest:
                assert ROOMS.index(rest[0]) <= here, f"{where}, a room below {room_of(path)}"


def test_no_app_imports_another() -> None:
    """What one asks another goes by the name of a question (`fields/frames.py`)."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources(LIBRARY) if (here := room_of(path)) in APPS
        for line, module in imports(path)
        if module.startswith("hybridperf.") and module.split(".")[1] in {*APPS} - {here}
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


_WITHOUT = """
import importlib, pkgutil, sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == GONE or name.startswith(GONE + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

GONE = "hybridperf." + sys.argv[1]
sys.meta_path.insert(0, Gone())
import hybridperf
from hybridperf.cli import app

for room in sys.argv[2:]:
    package = importlib.import_module(f"hybridperf.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
sys.stdout.reconfigure(encoding="utf-8")
try:
    app.main(["--help"])
except SystemExit as done:
    assert not done.code, done.code
"""


@pytest.mark.parametrize("app", APPS)
def test_an_app_that_is_taken_away_breaks_no_other(app: str) -> None:
    """All other rooms but what judges are imported without it, and the command says its help."""
    others = [room for room in ROOMS if room not in (app, "validate", "cli")]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, app, *others], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Predict" in done.stdout


def reached(arrows: dict[str, set[str]], start: str) -> set[str]:
    """Files that a file leads to."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = arrows[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def test_no_file_of_a_room_leads_back_to_itself() -> None:
    """Imports inside functions and those for types alone count, those of a package's `__init__` do
    not.
    """
    files = {
        ".".join(path.relative_to(LIBRARY).with_suffix("").parts): path
        for path in sources(LIBRARY)
        if path.name != "__init__.py"
    }
    arrows = {}
    for name, path in files.items():
        named = {module.removeprefix("hybridperf.") for _, module in imports(path)}
        arrows[name] = {
            other for other in named & {*files} if other.split(".")[0] == name.split(".")[0]
        }
    reach = {name: reached(arrows, name) for name in files}
    circles = {
        frozenset(other for other in reach[name] if name in reach[other]) for name in files
    } - {frozenset()}
    assert not circles


def test_the_calibration_programs_import_the_library_only_from_its_lower_rooms() -> None:
    """What measures must not depend on what predicts."""
    for path in sources(ROOT / "calibration"):
        for line, module in imports(path):
            above = ("cli", "report", "validate")
            assert module.split(".")[:2] not in (["hybridperf", room] for room in above), (
                f"{path}:{line}"
            )


def test_the_product_does_not_import_what_judges_it() -> None:
    for path in sources(LIBRARY):
        if room_of(path) not in ("validate", "cli"):
            assert not [name for _, name in imports(path) if name.startswith("hybridperf.validate")]
        assert not [name for _, name in imports(path) if name.startswith("benchmarks")]


def test_folders_with_sources_are_packages() -> None:
    """setuptools finds packages by their `__init__.py`."""
    for folder in {path.parent for path in (*sources(LIBRARY), *sources(ROOT / "calibration"))}:
        assert (folder / "__init__.py").exists(), f"{folder} has sources and is no package"


def test_nothing_reads_or_writes_pickles() -> None:
    """A model folder that somebody sends must not be able to run code."""
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in (*sources(LIBRARY), *sources(ROOT / "calibration")):
        for line, module in imports(path):
            assert module.split(".")[0] not in unsafe, f"{path}:{line}"
        for node in nodes(path):
            if isinstance(node, ast.Attribute):
                assert "pickle" not in node.attr, f"{path}:{node.lineno}"
            elif isinstance(node, ast.keyword):
                safe = node.arg != "allow_pickle" or getattr(node.value, "value", None) is False
                assert safe, f"{path}:{node.value.lineno}"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_check_of_a_room_runs_its_tests_and_no_pages() -> None:
    of_room, of_pages = (
        touched.tests_of(["hybridperf/io/files.py"]),
        touched.tests_of(["docs/a.md"]),
    )
    assert {"tests/io", "tests/project/test_project.py"} <= {*of_room}
    assert "tests/project/test_notebooks.py" not in of_room
    assert "tests/project/test_docs.py" in of_pages
    names = {path.name for path in (ROOT / "tests" / "project").iterdir()}
    assert names >= touched.PAGES.keys()


def test_public_names_exist() -> None:
    for name in hybridperf.__all__:
        assert callable(getattr(hybridperf, name)), name
    with pytest.raises(AttributeError, match="has no attribute 'prdict'"):
        _ = hybridperf.prdict  # type: ignore[attr-defined]


def test_a_first_prediction_imports_no_library_that_it_can_do_without() -> None:
    """Each would cost it a tenth of a second or more; JAX and pydantic it needs."""
    code = """
import sys, jax, jax.numpy as jnp, hybridperf as hp
workload = hp.from_jax(jax.grad(lambda w: jnp.tanh(w @ w).sum()), jnp.ones((64, 64)))
assert hp.predict(hp.PerfModel.datasheet(hp.load_device("here")), workload).time_s > 0
print(*sys.modules)
"""
    loaded = set(fresh(code).split())
    assert {"jax", "pydantic", "hybridperf.learning.prior.alone"} <= loaded
    slow = {"pandas", "flax", "optax", "pyarrow", "matplotlib", "sklearn"}
    slow |= {f"scipy.{part}" for part in ("linalg", "optimize", "special", "sparse", "stats")}
    assert not loaded & {*slow, "hybridperf.workloads.dlrm", "hybridperf.workloads.transformer"}


def test_a_first_answer_of_a_step_imports_no_library_that_it_can_do_without() -> None:
    """The page's first answer: a fifth of its time went into parts of SciPy that only fits use."""
    code = """
import sys
from hybridperf.cli.ask import ask
row = "model=llama2-7b gpu=h100_sxm system=dgx_h100 n_gpus=8 tp=2 pp=2 global_batch=16".split()
assert ask("steps", *row)["rows"][0]["predicted_s"] > 0
print(*sys.modules)
"""
    loaded = set(fresh(code).split())
    slow = {f"scipy.{part}" for part in ("linalg", "optimize", "special", "sparse", "stats")}
    slow |= {"optax", "flax", "matplotlib", "hybridperf.engine.batches"}
    assert not loaded & slow


@pytest.mark.parametrize(
    "first",
    [
        "hp.step_function",
        "hp.predict_batch",
        "hp.predict",
        "import hybridperf.engine.prediction",
        "import hybridperf.report.prediction",
    ],
)
def test_predict_is_a_function_whatever_is_used_first(first: str) -> None:
    """Python binds a loaded file to the package under the file's name, so no file may be called
    `predict`.
    """
    assert fresh(f"import hybridperf as hp\n{first}\nprint(callable(hp.predict))") == "True"


def test_importing_the_package_loads_no_jax() -> None:
    assert (
        fresh(
            "import sys, hybridperf\nprint([m for m in ('jax', 'pandas', 'flax', 'matplotlib') if m"
            " in sys.modules])"
        )
        == "[]"
    )


def test_programs_from_jax_cache_are_loaded_without_a_word(tmp_path: Path) -> None:
    code = (
        "import hybridperf, jax, jax.numpy as jnp\nprint(float(jax.jit(lambda x: jnp.tanh(x @"
        " x).sum())(jnp.ones((64, 64)))))"
    )
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    cache["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    env = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    } | cache
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        assert (done.stdout, done.stderr) == ("4096.0\n", "")
    assert any(tmp_path.iterdir())
