"""Steps of a user's own kinds: what `predict --jax` takes, in sizes that no calibration has."""

import jax
import pytest

from hybridperf.validate import here, jax_steps
from hybridperf.workloads.own import made_by
from hybridperf_calibration.microbench.families import FAMILIES, points

NAMES = [spec["config"]["function"].partition(":")[2] for spec in here.KINDS]


def operands(jaxpr) -> set[tuple]:
    """Shapes of what products and convolutions multiply, loops' bodies included."""
    found = set()
    for one in jaxpr.eqns:
        if one.primitive.name in ("dot_general", "conv_general_dilated"):
            found.add(tuple(given.aval.shape for given in one.invars))
        for inner in jax.core.jaxprs_in_params(one.params):
            found |= operands(inner)
    return found


@pytest.fixture(scope="module")
def measured() -> set[tuple]:
    """Shapes that a calibration multiplies, in either order."""
    programs = [
        family.build(u)
        for family in FAMILIES
        if family.name in ("gemm", "bmm", "conv")
        for u in points(family, max(family.full, family.quick))
    ]
    shapes = [tuple(one[1] for one in program.arguments[:2]) for program in programs]
    return {*shapes, *(two[::-1] for two in shapes)}


@pytest.mark.parametrize("name", NAMES)
def test_no_product_is_a_calibration_case(name, measured) -> None:
    def step():
        fn, args, donated = made_by(f"hybridperf.validate.jax_steps:{name}")
        assert donated == (0, 1)
        return fn(*args)

    jaxpr, (params, _, loss) = jax.make_jaxpr(step, return_shape=True)()
    found = operands(jaxpr.jaxpr)
    assert len(found) > 3
    assert not found & measured
    assert loss.shape == ()
    assert len(jax.tree.leaves(params)) > 3


def test_there_are_two_of_each_kind() -> None:
    assert len(NAMES) == 8
    assert {name.partition("_")[0] for name in NAMES} == {"cnn", "resnet", "vit", "lstm", "gnn"}
    assert all(callable(getattr(jax_steps, name)) for name in NAMES)
