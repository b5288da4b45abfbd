"""One price: who asks what calls cost. A module outside `model/` and `engine/` that prices or sums
seconds of calls by itself is a second engine in the making.
"""

import ast
from pathlib import Path

import hybridperf

ROOT = Path(hybridperf.__file__).parent
# what gives seconds of calls
PRICING = {
    "op_seconds", "roofline_seconds", "alone_seconds", "in_step_seconds", "row_seconds",
    "collective_seconds", "step_durations", "durations",
}  # fmt: skip
HOME = ("model", "engine", "collectives", "ops", "learning")
# judges compare prices with measurements
JUDGES = ("validate",)
# module: what it does with the price's answers
ASKS = {
    "training/steps/cells.py": "keeps the price of each unique call of a batch of steps",
    "traces/other_device.py": "prices ops of a trace on two machines, for their ratio",
    "explore/sharding/cost.py": "lookups of all tables of a rank, priced together",
    "serving/function.py": "the rows of a served step on a varied machine, for its slopes",
}


def asked(path: Path) -> set[str]:
    """Pricing functions and methods that a module calls."""
    calls = (
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    )
    names = {getattr(one, "attr", getattr(one, "id", "")) for one in calls}
    return names & PRICING


def test_calls_are_priced_by_the_model_and_composed_by_the_engine() -> None:
    found = {}
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT)
        if module.parts[0] not in (*HOME, *JUDGES) and (names := asked(path)):
            found[module.as_posix()] = names
    assert set(found) <= set(ASKS), {name: found[name] for name in set(found) - set(ASKS)}
    assert set(ASKS) <= set(found), "no longer asks: take it off the list"


def test_every_composition_goes_by_one_table_of_roles() -> None:
    """Which effects count for a call stands in `model/step_effects.py` and nowhere else."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "ROLES" in path.read_text() or "in_step_s(" in path.read_text()
    }
    assert users == {
        "model/step_effects.py", "model/step_table.py", "model/calls.py", "engine/interval.py",
        "engine/closed.py", "workloads/transformer/in_step.py",
    }  # fmt: skip
