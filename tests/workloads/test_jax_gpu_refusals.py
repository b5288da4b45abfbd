"""JAX programs for GPUs that are not here: messages of a mesh by their bytes and ranks, and what is
refused, by its line.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.jax_steps import H100, f32, gpu, ran

import hybridperf as hp
from benchmarks.claims.gpu_jax_steps import bf16
from hybridperf.io import InputError
from hybridperf.model.calls import CallChain, CollectiveCall
from hybridperf.ops import Gemm
from hybridperf.workloads.programs.jax.hlo import Instruction, Shape
from hybridperf.workloads.programs.jax.hlo_collectives import collective_calls

AUTO = (AxisType.Auto,)  # newer versions of JAX assume another

# --- many GPUs ------------------------------------------------------------------------------------


def test_messages_of_a_mesh_have_their_bytes_and_ranks() -> None:
    mesh = AbstractMesh((2, 8), ("nodes", "gpus"), axis_types=AUTO * 2)

    def part(x, w):
        y = lax.psum(x @ w, "gpus")
        whole = lax.all_gather(y, "nodes", tiled=True)
        mine = lax.psum_scatter(whole, "nodes", tiled=True)
        turned = lax.all_to_all(mine, "gpus", 0, 1, tiled=True)
        return lax.ppermute(turned, "nodes", [(0, 1), (1, 0)])

    divided = jax.shard_map(
        part, mesh=mesh, in_specs=(P("nodes", "gpus"), P("gpus")), out_specs=P("nodes", "gpus")
    )
    step = gpu(divided, bf16(256, 1024), bf16(1024, 512))
    size = 128 * 512 * 2
    assert [call for call in step.calls if isinstance(call, CollectiveCall)] == [
        CollectiveCall("all_reduce", size, 8, 1), CollectiveCall("all_gather", 2 * size, 2, 2),
        CollectiveCall("reduce_scatter", 2 * size, 2, 2), CollectiveCall("alltoall", size, 8, 1),
        CollectiveCall("sendrecv", size, 2, 2),
    ]  # fmt: skip
    assert ran(step)[0].op == Gemm("bf16", 128, 512, 128)
    model = hp.load_model(H100).with_collectives(hp.load_collectives("dgx_h100"))
    alone = gpu(jnp.matmul, bf16(128, 128), bf16(128, 512))
    assert hp.predict(model, step).time_s > 2 * hp.predict(H100, alone).time_s
    repeated = jax.shard_map(
        lambda x: lax.fori_loop(0, 9, lambda i, x: lax.psum(x, "gpus") * 0.5, x),
        mesh=mesh, in_specs=P("nodes", "gpus"), out_specs=P("nodes", "gpus"), check_vma=False,
    )  # fmt: skip
    (chain,) = (c for c in gpu(repeated, bf16(256, 1024)).calls if isinstance(c, CallChain))
    assert [often for _, often in chain.parts] == [9]


@pytest.mark.parametrize(
    ("groups", "size", "nodes"),
    [
        ("{{0,1,2},{3,4,5}}", 3, 2), ("[2,3]<=[6]", 3, 2), ("[3,2]<=[2,3]T(1,0)", 2, 2),
        ("mesh['a'=2,'b'=3] {'b'}", 3, 2), ("mesh['a'=2,'b'=3] {'a'}", 2, 2),
        ("mesh['a'=3,'b'=2] {'b'}", 2, 1), ("mesh['a'=2,'b'=3] {'a','b'}", 6, 3),
    ],
)  # fmt: skip
def test_groups_of_ranks_are_understood_in_every_spelling(groups, size, nodes) -> None:
    """By name since JAX 0.12; two ranks a node."""
    said = Instruction(
        "r", "all-reduce", (), (), f"replica_groups={groups}, to_apply=add", False, ""
    )
    (call,) = collective_calls(said, [Shape("fp32", (8,), (0,))], 6, "gpu", 2)
    assert (call.ranks, call.nodes) == (size, nodes)


def test_what_a_compiler_has_yet_to_divide_is_refused() -> None:
    mesh = AbstractMesh((4,), ("data",), axis_types=AUTO)
    x = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    with pytest.raises(
        InputError, match=r"test_jax_gpu_refusals\.py line \d+: the compiler decides how"
    ):
        gpu(lambda x: lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x), x), x)
    both = AbstractMesh((2, 4), ("data", "model"), axis_types=AUTO * 2)
    half = jax.shard_map(
        lambda x: x * 2, mesh=both, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    with pytest.raises(InputError, match="leaves the axis model of its mesh to the compiler"):
        gpu(half, bf16(64, 128))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda x: jnp.linalg.eigh(x)[0], r"cannot price 1 kind\(s\) of op: \S+"),
        (
            lambda x: lax.while_loop(lambda y: y.sum() > 0, lambda y: y - 1, x),
            r"cannot price 1 kind\(s\) of op: while with an unknown trip count",
        ),
    ],
)
def test_what_nobody_can_price_is_named_with_its_line(step, says) -> None:
    with pytest.raises(
        InputError, match=rf"{says} \(\S+test_jax_gpu_refusals\.py line \d+\)"
    ) as error:
        gpu(step, f32(8, 8))
    assert "\n" not in str(error.value)


def test_a_function_that_pmap_made_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"line \d+: .* got one of jax\.pmap"):
        gpu(jax.pmap(lambda x: x * 2), f32(1, 8))


def test_what_needs_the_gpu_to_be_lowered_is_said_with_its_line() -> None:
    with pytest.raises(
        InputError, match=r"test_jax_gpu_refusals\.py line \d+: JAX cannot lower this for"
    ):
        gpu(lambda x: jax.pure_callback(lambda y: y, x, x), f32(8, 8))


@pytest.mark.parametrize("device", ["h100_sxm", None])
@pytest.mark.parametrize(
    "step",
    [lambda x: x if x.sum() > 0 else -x, lambda x: x[x > 0].sum(), lambda x: x * float(x[0])],
)
def test_what_depends_on_a_number_is_said_with_its_line(step, device) -> None:
    says = r"test_jax_gpu_refusals\.py line \d+: what the program does depends on a number"
    with pytest.raises(InputError, match=says) as error:
        hp.from_jax(step, jnp.zeros(8), device=device)
    assert "\n" not in str(error.value)


def test_what_a_function_cannot_take_is_said_in_a_sentence() -> None:
    mesh = AbstractMesh((8,), ("data",), axis_types=AUTO)
    mean = jax.shard_map(
        lambda x: lax.pmean(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P(),
        check_vma=False,
    )  # fmt: skip
    says = r"py line \d+: the mesh does not divide an argument \(array axis 0 \(of size 1001\)"
    with pytest.raises(InputError, match=says) as error:
        gpu(mean, f32(1001, 4))
    assert "\n" not in str(error.value)
    for given in ((), (f32(4, 4),) * 3):
        with pytest.raises(InputError, match=r"py line \d+: expected the arguments of \S+\(x, y\)"):
            gpu(lambda x, y: x @ y, *given)
    with pytest.raises(InputError, match="expected a function or a module, got 3"):
        gpu(3)


def test_an_op_can_be_left_out() -> None:
    step = gpu(lambda x: jnp.fft.fft(jnp.tanh(x)).real.sum(), f32(64, 64), ignore=["fft"])
    assert step.notes == ("ignored fft, 1 of them",)


def test_devices_are_gpus_or_this_machine() -> None:
    def step(x):
        return x @ x

    assert hp.from_jax(step, f32(64, 64), device="here").backend == "cpu"
    with pytest.raises(InputError, match=r"did you mean|known"):
        hp.from_jax(step, f32(64, 64), device="h100_sxn")
    with pytest.raises(InputError, match="expected a GPU of NVIDIA or AMD"):
        hp.from_jax(step, f32(64, 64), device="tpu_v5e")
    with pytest.raises(InputError, match="already jitted"):
        gpu(jax.jit(step), f32(64, 64), donate_argnums=0)
    with pytest.raises(InputError, match="one GPU per node or more"):
        gpu(step, f32(64, 64), gpus_per_node=0)
