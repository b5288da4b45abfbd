"""Waiting times a user notices, in seconds: `python benchmarks/bench_import.py`. By hand: a busy
machine makes timings fail.

Import: best of three fresh processes. First prediction: a small program compiled, read and priced
in a fresh process, with an empty and with a warm compilation cache of JAX. Most of it is JAX: what
the same program takes without us stands beside it. Python keeps its bytecode, as it does for users.
"""

import os
import subprocess
import sys
import tempfile
import time

LIMITS_S = {
    "import hybridperf": 0.1,
    "first prediction, empty cache": 1.5,
    "first prediction, warm cache": 1.0,
}
IMPORT = "import hybridperf"
EVERYTHING = "import hybridperf as hp; [getattr(hp, name) for name in hp.__all__]"
PROGRAM = """
import jax, jax.numpy as jnp
def mlp(w, x): return jnp.tanh(x @ w).sum()
step, args = jax.grad(mlp), (jnp.ones((256, 256)), jnp.ones((64, 256)))
"""
JAX_ALONE = PROGRAM + "print(len(jax.jit(step).lower(*args).compile().as_text()))"
FIRST_PREDICTION = (
    PROGRAM
    + """
import hybridperf as hp
workload = hp.from_jax(step, *args)
print(hp.predict(hp.PerfModel.datasheet(hp.load_device("here")), workload).time_s)
"""
)


def seconds(code: str, **environment: str) -> float:
    """Wall time of a fresh process; XLA's warnings about its cached programs go unseen."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    kept = {name: word for name, word in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env={**kept, **environment}, **quiet)
    return time.perf_counter() - start


def main() -> None:
    took = {
        "python alone": min(seconds("pass") for _ in range(3)),
        "import hybridperf": min(seconds(IMPORT) for _ in range(3)),
        "all public names": min(seconds(EVERYTHING) for _ in range(3)),
    }
    alone, empty, warm = [], [], []
    for _ in range(3):  # in turn: what else the machine does meets all three
        with tempfile.TemporaryDirectory() as cache:
            kept = {
                "JAX_COMPILATION_CACHE_DIR": cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            empty.append(seconds(FIRST_PREDICTION, **kept))
            warm.append(seconds(FIRST_PREDICTION, **kept))
            alone.append(seconds(JAX_ALONE, **kept))
    took["first prediction, empty cache"] = min(empty)
    took["first prediction, warm cache"] = min(warm)
    took["JAX without us, warm cache"] = min(alone)
    for what, value in took.items():
        bar = f" (< {LIMITS_S[what]})" if what in LIMITS_S else ""
        missed = ", MISSED" if value > LIMITS_S.get(what, value) else ""
        print(f"{what:33}{value:6.2f} s{bar}{missed}")


if __name__ == "__main__":
    main()
