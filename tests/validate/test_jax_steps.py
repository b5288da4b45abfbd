"""Steps of a user's own kinds: what `predict --jax` takes, in sizes that no calibration has."""

import math

import jax
import numpy as np
import pytest

from hybridperf.validate import here
from hybridperf.workloads.own import made_by
from hybridperf_calibration.microbench.families import FAMILIES
from hybridperf_calibration.microbench.op_programs import points

NAMES = [spec["config"]["function"] for spec in here.KINDS]


def products(jaxpr) -> set[tuple]:
    """Sizes of products and convolutions, loops' bodies included: in no order, so that those of a
    backward pass are the same.
    """
    found = set()
    for one in jaxpr.eqns:
        sizes = [np.array(given.aval.shape) for given in one.invars if hasattr(given.aval, "shape")]
        if one.primitive.name == "dot_general":
            summed, batch = one.params["dimension_numbers"]
            alike = [[*a, *b] for a, b in zip(summed, batch, strict=True)]
            own = [math.prod(np.delete(size, at)) for size, at in zip(sizes, alike, strict=True)]
            k, times = (math.prod(sizes[0][list(at[0])]) for at in (summed, batch))
            found.add(("product", times, *sorted([*own, k])))
        if one.primitive.name == "conv_general_dilated":
            found.add(("convolution", *sorted([*sizes[0], *sizes[1]])))
        for inner in jax.core.jaxprs_in_params(one.params):
            found |= products(inner)
    return found


@pytest.fixture(scope="module")
def measured() -> set[tuple]:
    """What a calibration multiplies."""
    found = set()
    for family in FAMILIES:
        if family.name not in ("gemm", "bmm", "conv"):
            continue
        for u in points(family, max(family.full, family.quick)):
            program = family.build(u)
            given = [jax.ShapeDtypeStruct(one[1], np.float32) for one in program.arguments]
            found |= products(jax.make_jaxpr(program.fn)(*given).jaxpr)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_product_is_a_calibration_case(name, measured) -> None:
    """By the parameters' making, which runs the net once."""
    assert len(measured) > 100
    found = products(jax.make_jaxpr(lambda: made_by(name)[1])().jaxpr)
    assert len(found) > 1
    assert not found & measured


def test_there_are_two_of_each_kind() -> None:
    kinds = [name.partition(":")[2].partition("_")[0] for name in NAMES]
    assert sorted(kinds) == ["cnn", "gnn", "gnn", "lstm", "lstm", "resnet", "vit", "vit"]
