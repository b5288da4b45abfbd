"""Ten plain programs in flax and jnp, each a whole training step: (function, shapes of arguments);
and JAX programs as workloads of a GPU.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import hybridperf as hp
from benchmarks.claims import gpu_jax_steps
from benchmarks.claims.gpu_jax_steps import Experts as Moe
from benchmarks.claims.gpu_jax_steps import Mamba, classified, clicked, f32, i32, squared
from hybridperf.engine.workload import Workload
from hybridperf.ops import OpCall

H100 = "h100_sxm"


def gpu(fn, *args, **options) -> Workload:
    return hp.from_jax(fn, *args, device=H100, **options)


def ran(workload: Workload) -> list[OpCall]:
    """Kernels in order."""
    calls = [workload.calls[row - 1] for row in workload.graph.row]
    return [call for call in calls if isinstance(call, OpCall)]


def step_of(net: nn.Module, loss: Callable, x: Any, y: Any, update: Any = None) -> tuple:
    """A step of a net with AdamW, and its arguments without memory."""
    return gpu_jax_steps.step_of(net, loss, x, y, update=update)[:2]


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
