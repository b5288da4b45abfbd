"""Programs whose arrays lie on a mesh: each device does its share of what one would do, and sends
what the layout is known for.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hybridperf as hp
from hybridperf.engine.workload import Workload
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import OpCall
from hybridperf.workloads.programs.jax.shardings import NOTE

DATA, MODEL = 2, 4
MESH = AbstractMesh((DATA, MODEL), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ROWS, WIDTH, WIDER, LAYERS = 2048, 512, 2048, 3

# sums by axes of a mesh: such programs are refused there, as before
divides = pytest.mark.skipif(
    jax.__version_info__ >= (0, 12), reason="Shardy of JAX 0.12 writes what is not read yet"
)


def lies(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P(*spec)))


def whole(tree):
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), tree)


def layer(x, w):
    return x + jnp.tanh(x @ w[0]) @ w[1], None


def gradients(w, x):
    """Of a stack of layers, computed again for the backward pass."""
    return jax.grad(lambda w: lax.scan(jax.checkpoint(layer), x, w)[0].astype("float32").sum())(w)


def step(program, *args) -> Workload:
    return hp.from_jax(program, *args, device="h100_sxm")


def products(workload: Workload) -> float:
    return sum(
        call.op.work().flops * call.times * times
        for call, times in zip(workload.calls, workload.times_run(), strict=True)
        if isinstance(call, OpCall) and call.op.unit == "matrix"
    )


def sent(workload: Workload) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for call, times in zip(workload.calls, workload.times_run(), strict=True):
        if isinstance(call, CollectiveCall):
            kind = call.collective, call.ranks
            found[kind] = found.get(kind, 0.0) + float(call.bytes) * times
    return found


@divides
def test_layers_that_tensor_parallelism_divides() -> None:
    """Megatron's layer: columns, then rows, a sum of activations forward and one backward."""
    w = (
        lies((LAYERS, WIDTH, WIDER), None, None, "model"),
        lies((LAYERS, WIDER, WIDTH), None, "model"),
    )
    x = lies((ROWS, WIDTH), "data")
    divided, alone = step(gradients, w, x), step(gradients, *whole((w, x)))
    # two forward, one again, four backward; written out, those that nobody needs are left out: the
    # last layer's result, the gradient of what the first one is given
    each = 2 * ROWS * WIDTH * WIDER
    assert products(alone) == pytest.approx(7 * LAYERS * each)
    assert products(divided) == pytest.approx((7 * LAYERS - 3) * each / DATA / MODEL)
    activations = 2 * ROWS / DATA * WIDTH
    # forward but for the last layer, backward but for the first
    sums = sent(divided)["all_reduce", MODEL] / activations
    assert sums == pytest.approx(2 * LAYERS - 2)
    weights = 2 * LAYERS * 2 * WIDTH * WIDER / MODEL
    assert sent(divided)["all_reduce", DATA] == pytest.approx(weights, rel=0.01)
    assert NOTE in divided.notes


@divides
def test_weights_that_are_shared_out_are_gathered() -> None:
    """Data parallelism with whole weights sums gradients; with shards of them it gathers, too."""
    x = lies((ROWS, WIDTH), ("data", "model"))
    ranks, size = DATA * MODEL, 2 * WIDTH * WIDER
    program = jax.grad(lambda w, x: jnp.tanh(x @ w).astype("float32").sum())
    replicated = sent(step(program, lies((WIDTH, WIDER)), x))
    assert replicated == {("all_reduce", ranks): pytest.approx(size)}
    shards = lies((WIDTH, WIDER), ("data", "model"))
    sharded = sent(step(jax.jit(program, out_shardings=shards.sharding), shards, x))
    assert ("all_gather", ranks) in sharded
    assert {("reduce_scatter", ranks), ("all_reduce", ranks)} & sharded.keys()


@divides
def test_a_table_whose_rows_are_shared_out_is_looked_up() -> None:
    table = lies((32000, WIDTH), "model")
    tokens = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=NamedSharding(MESH, P("data")))
    found = step(lambda table, i: table[i].astype("float32").sum(), table, tokens)
    assert (
        hp.predict(
            hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100")), found
        ).time_s
        > 0
    )


_COMPILED = """
import jax, jax.numpy as jnp, math, re, sys
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
lies = lambda shape, *spec: jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
w = lies((512, 2048), "data", "model"), lies((2048, 512), "model", "data")
layer = lambda x, w: x + jnp.tanh(x @ w[0]) @ w[1]
program = lambda w, x: jax.grad(lambda w: layer(layer(x, w), w).sum())(w)
text = jax.jit(program).lower(w, lies((2048, 512), "data")).compile().as_text()
for shapes, kind in re.findall(r"= (.*?) (all-reduce|all-gather)\\(", text):
    for dims in re.findall(r"f32\\[([0-9,]*)\\]", shapes):
        print(kind.replace("-", "_"), 4 * math.prod(map(int, dims.split(","))))
"""


@divides
def test_messages_are_those_that_xla_sends() -> None:
    """A compiled program of eight devices of a CPU, which are one: bytes by kind."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=True,
        env=environment,
    )  # fmt: skip
    theirs: dict[str, float] = {}
    for kind, size in map(str.split, done.stdout.splitlines()):
        theirs[kind] = theirs.get(kind, 0.0) + float(size)

    def floats(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))

    w = floats((512, 2048), "data", "model"), floats((2048, 512), "model", "data")

    def twice(w, x):
        def both(x):
            return x + jnp.tanh(x @ w[0]) @ w[1]

        return both(both(x)).sum()

    ours: dict[str, float] = {}
    for (kind, _), size in sent(step(jax.grad(twice), w, floats((2048, 512), "data"))).items():
        ours[kind] = ours.get(kind, 0.0) + size
    assert ours == pytest.approx(theirs)
    assert {"all_reduce", "all_gather"} == theirs.keys()
