"""First values and slopes of functions of knobs, and what they take once compiled:
`python benchmarks/bench_gradients.py [NAME ...] [--jit]`.

Each function in a process of its own, seconds of processor: making it, its first value, its first
value with slopes (`jax.value_and_grad`) and the next one at another machine; with `--jit` the same
inside `jax.jit` by JAX' own options and by those that compile sooner (`--jit` alone takes minutes).
`steps`: of a step of 2,037 nodes on a measured GPU, corrections held and alive, a value with slopes
once compiled and 10,000 points of bandwidth under `jax.vmap`.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp

import hybridperf as hp
from hybridperf.io.namespace import SOONER_COMPILED

FIRST_BAR_S, FIRST_SLOPES_BAR_S = 1.5, 5.0
ONE_BAR_US, MANY_BAR = 500, 300_000


def datasheet() -> hp.PerfModel:
    """An H100 and its links by their datasheets."""
    model = hp.PerfModel.datasheet(hp.load_device("h100_sxm"))
    return model.with_collectives(hp.CollectiveModel.datasheet(hp.load_system("dgx_h100")))


def measured() -> hp.PerfModel:
    """The shipped calibrations of both."""
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))


def point(model: hp.PerfModel) -> tuple[Any, Callable[[Any], jax.Array]]:
    """An engine's operating point, and its tokens a second."""
    deployment = hp.Deployment(hp.load_shape("llama3-8b"), tp=2, framework="vllm")
    f = hp.serving_function(model, deployment, clients=64, prompt=1000, output=250)
    return f, lambda knobs: f(knobs)["tokens_per_s"]


def step(model: hp.PerfModel) -> tuple[Any, Callable[[Any], jax.Array]]:
    """A training step of Llama 2 7B, and its seconds."""
    f = hp.step_function(
        model,
        hp.transformer(hp.TransformerConfig.run_by("megatron_core", hp.load_shape("llama2-7b"))),
    )
    return f, f


KINDS: dict[str, Callable[[], tuple[Any, Callable[[Any], jax.Array]]]] = {
    "step by the datasheet": lambda: step(datasheet()),
    "step, measured": lambda: step(measured()),
    "point by the datasheet": lambda: point(datasheet()),
    "point, measured": lambda: point(measured()),
}


def taken_s(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor, and what came of it."""
    start_s = time.process_time()
    found = jax.block_until_ready(run())
    return time.process_time() - start_s, found


def first(name: str, jit: bool) -> None:
    """Print what the first calls of a function take."""
    make_s, (f, told) = taken_s(KINDS[name])
    both, knobs = jax.value_and_grad(told), f.knobs
    if jit:
        for words, options in (("JAX' options", {}), ("SOONER_COMPILED", SOONER_COMPILED)):
            compiled = jax.jit(lambda k: both(k), compiler_options=options)
            first_s, _ = taken_s(lambda compiled=compiled: compiled(knobs))
            print(f"{name}: first value with slopes under jax.jit, {words}: {first_s:.1f} s")
        return
    value_s, _ = taken_s(lambda: told(knobs))
    slopes_s, _ = taken_s(lambda: both(knobs))
    other = knobs | {"memory_bytes_per_s": knobs["memory_bytes_per_s"] * 1.01}
    other_s, again_s = taken_s(lambda: both(other))[0], taken_s(lambda: both(knobs))[0]
    print(
        f"{name}: made in {make_s:.1f} s, first value {value_s:.1f} s (goal {FIRST_BAR_S}), first"
        f" value with slopes {slopes_s:.1f} s (goal {FIRST_SLOPES_BAR_S:g}), at another machine"
        f" {other_s * 1e3:.0f} ms, at the same again {again_s * 1e3:.0f} ms",
        flush=True,
    )


def steps() -> None:
    """Print what a step's slopes and batches take once compiled."""
    layout = hp.Layout(tp=2, dp=2, accumulation=2)
    config = hp.TransformerConfig.run_by("megatron_core", hp.load_shape("gpt3-1.3b"), layout)
    workload = hp.transformer(config)
    for hold in (True, False):
        f = hp.step_function(measured(), workload, hold_corrections=hold)
        rates = f.knobs["memory_bytes_per_s"] * jnp.linspace(0.5, 2.0, 10_000)
        both, many = jax.jit(jax.value_and_grad(f)), jax.jit(jax.vmap(f))
        asked = {"memory_bytes_per_s": rates}
        jax.block_until_ready((both(f.knobs), many(asked)))
        one_s = min(taken_s(lambda both=both, f=f: both(f.knobs))[0] for _ in range(50))
        many_s = min(taken_s(lambda many=many, asked=asked: many(asked))[0] for _ in range(7))
        print(
            f"{len(workload.graph):,} nodes, corrections {'held' if hold else 'alive'}: value with"
            f" slopes {one_s * 1e6:,.0f} us (goal {ONE_BAR_US}), 10,000 under vmap"
            f" {len(rates) / many_s:,.0f}/s (goal {MANY_BAR:,})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"steps, {', '.join(KINDS)}; default: all")
    parser.add_argument("--jit", action="store_true")
    given = parser.parse_args()
    names = given.names or ["steps", *KINDS]
    if len(names) > 1:
        for name in names:
            again = [sys.executable, __file__, name, *(["--jit"] if given.jit else [])]
            subprocess.run(again, check=True)
    elif names[0] == "steps":
        steps()
    else:
        first(names[0], given.jit)


if __name__ == "__main__":
    main()
