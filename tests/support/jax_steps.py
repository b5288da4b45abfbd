"""Ten plain programs in flax and jnp, each a whole training step: (function, shapes of arguments);
and JAX programs as workloads of a GPU.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

import hybridperf as hp
from hybridperf.engine.workload import Workload
from hybridperf.ops import OpCall

H100 = "h100_sxm"


def f32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def i32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.int32)


def bf16(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.bfloat16)


def gpu(fn, *args, **options) -> Workload:
    return hp.from_jax(fn, *args, device=H100, **options)


def ran(workload: Workload) -> list[OpCall]:
    """Kernels in order."""
    calls = [workload.calls[row - 1] for row in workload.graph.row]
    return [call for call in calls if isinstance(call, OpCall)]


def classified(found, labels):
    return optax.softmax_cross_entropy_with_integer_labels(found.astype(jnp.float32), labels).mean()


def squared(found, wanted):
    return ((found - wanted) ** 2).mean()


def clicked(found, labels):
    return optax.sigmoid_binary_cross_entropy(found, labels).mean()


def step_of(net: nn.Module, loss: Callable, x: Any, y: Any, update: Any = None) -> tuple:
    """A step of a net with AdamW, and its arguments without memory."""
    update = update or optax.adamw(1e-3)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype)))
    state = jax.eval_shape(update.init, params)

    def step(params, state, x, y):
        value, grads = jax.value_and_grad(lambda p: loss(net.apply(p, x), y))(params)
        changes, state = update.update(grads, state, params)
        return optax.apply_updates(params, changes), state, value

    return step, (params, state, x, y)


class Mlp(nn.Module):
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x):
        for width in (1024, 1024):
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(16, dtype=self.dtype)(x)


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x):
        for c in (32, 64):
            x = nn.max_pool(nn.relu(nn.Conv(c, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class ResidualBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.relu(nn.GroupNorm(8)(nn.Conv(64, (3, 3), use_bias=False)(x)))
        y = nn.GroupNorm(8)(nn.Conv(64, (3, 3), (2, 2), use_bias=False)(y))
        x = nn.Conv(64, (1, 1), (2, 2), use_bias=False)(x)
        return nn.Dense(10)(nn.relu(x + y).mean((1, 2)))


class Block(nn.Module):
    heads: int = 8

    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x))
        h = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(h)


class Vit(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(256, (16, 16), (16, 16), padding="VALID")(x).reshape(x.shape[0], -1, 256)
        x = x + self.param("places", nn.initializers.normal(), (1, x.shape[1], 256))
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.OptimizedLSTMCell(256))(nn.Embed(1000, 128)(x))
        return nn.Dense(1000)(x)


class Gnn(nn.Module):
    @nn.compact
    def __call__(self, x):
        edges = jnp.arange(5000)
        to, of = (edges * 7) % 1000, (edges * 13) % 1000
        for _ in range(3):
            sent = nn.Dense(64)(x)[to]
            x = nn.relu(jax.ops.segment_sum(sent, of, 1000) + nn.Dense(64)(x))
        return nn.Dense(10)(x)


class Dlrm(nn.Module):
    @nn.compact
    def __call__(self, b):
        dense, rows = b[:, :13].astype(jnp.float32), b[:, 13:].reshape(b.shape[0], 8, 4)
        d = nn.relu(nn.Dense(64)(nn.relu(nn.Dense(128)(dense))))
        bags = [nn.Embed(10000, 64)(rows[:, t]).sum(1) for t in range(8)]
        v = jnp.stack([d, *bags], 1)
        i, j = jnp.tril_indices(9, -1)
        z = jnp.concatenate([d, jnp.einsum("bid,bjd->bij", v, v)[:, i, j]], 1)
        return nn.Dense(1)(nn.relu(nn.Dense(256)(z)))[:, 0]


class Unet(nn.Module):
    @nn.compact
    def __call__(self, x):
        t = nn.silu(nn.Dense(64)(jnp.sin(jnp.arange(64.0) * x.mean((1, 2, 3))[:, None])))

        def residual(h, c):
            y = nn.Conv(c, (3, 3))(nn.silu(nn.GroupNorm(8)(h))) + nn.Dense(c)(t)[:, None, None]
            return nn.Conv(c, (3, 3))(nn.silu(nn.GroupNorm(8)(y))) + nn.Conv(c, (1, 1))(h)

        a = residual(nn.Conv(64, (3, 3))(x), 64)
        b = residual(nn.Conv(128, (3, 3), (2, 2))(a), 128)
        n, height, width, c = b.shape
        tokens = nn.GroupNorm(8)(b).reshape(n, -1, c)
        b = b + nn.MultiHeadDotProductAttention(4)(tokens).reshape(b.shape)
        up = jax.image.resize(b, (n, height * 2, width * 2, c), "nearest")
        return nn.Conv(3, (3, 3))(residual(jnp.concatenate([up, a], -1), 64))


class Moe(nn.Module):
    experts: int = 8
    each: int = 2

    @nn.compact
    def __call__(self, x):
        d = x.shape[-1]
        weights, chosen = lax.top_k(nn.softmax(nn.Dense(self.experts)(x)), self.each)
        order = jnp.argsort(chosen.reshape(-1))
        token = order // self.each
        up = self.param("up", nn.initializers.normal(), (self.experts, d, 4 * d))
        down = self.param("down", nn.initializers.normal(), (self.experts, 4 * d, d))
        rows = x[token].reshape(self.experts, -1, d)
        h = nn.gelu(jnp.einsum("ecd,edf->ecf", rows, up))
        y = jnp.einsum("ecf,efd->ecd", h, down).reshape(-1, d)
        return jnp.zeros_like(x).at[token].add(y * weights.reshape(-1)[order][:, None])


class Mamba(nn.Module):
    @nn.compact
    def __call__(self, x):
        d, n = x.shape[-1], 16
        u, gate = jnp.split(nn.Dense(2 * d)(x), 2, -1)
        u = nn.silu(nn.Conv(d, (4,), padding=((3, 0),), feature_group_count=d)(u))
        dt, b, c = nn.softplus(nn.Dense(d)(u)), nn.Dense(n)(u), nn.Dense(n)(u)
        a = -jnp.exp(self.param("a", nn.initializers.normal(), (d, n)))

        def token(h, given):
            u, dt, b, c = given
            h = h * jnp.exp(dt[..., None] * a) + (dt * u)[..., None] * b[:, None]
            return h, (h * c[:, None]).sum(-1)

        given = tuple(jnp.swapaxes(one, 0, 1) for one in (u, dt, b, c))
        _, y = lax.scan(token, jnp.zeros((x.shape[0], d, n)), given)
        return nn.Dense(d)(jnp.swapaxes(y, 0, 1) * nn.silu(gate))


IMAGES, TOKENS = f32(32, 32, 32, 3), f32(4, 256, 128)
STEPS: dict[str, Callable[[], tuple]] = {
    "mlp": lambda: step_of(
        Mlp(), classified, jax.ShapeDtypeStruct((64, 256), jnp.bfloat16), i32(64)
    ),
    "cnn": lambda: step_of(Cnn(), classified, IMAGES, i32(32)),
    "residual block": lambda: step_of(ResidualBlock(), classified, f32(32, 32, 32, 64), i32(32)),
    "vit": lambda: step_of(Vit(), classified, f32(32, 224, 224, 3), i32(32)),
    "lstm": lambda: step_of(Lstm(), classified, i32(16, 100), i32(16, 100)),
    "gnn": lambda: step_of(Gnn(), classified, f32(1000, 64), i32(1000)),
    "dlrm": lambda: step_of(Dlrm(), clicked, i32(256, 45), f32(256), optax.adagrad(0.1)),
    "u-net": lambda: step_of(Unet(), squared, f32(8, 32, 32, 3), f32(8, 32, 32, 3)),
    "moe": lambda: step_of(Moe(), squared, f32(512, 128), f32(512, 128)),
    "mamba": lambda: step_of(Mamba(), squared, TOKENS, TOKENS),
}
