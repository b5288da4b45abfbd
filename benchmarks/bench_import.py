"""Waiting times a user notices, in seconds: `python benchmarks/bench_import.py`. By hand: a busy
machine makes timings fail.

Import: best of three fresh processes, below 1.5 s. First prediction: a small program compiled, read
and priced in a fresh process, with an empty and with a warm compilation cache of JAX.
"""

import os
import subprocess
import sys
import tempfile
import time

IMPORT_LIMIT_S = 1.5
IMPORT = "import hybridperf"
EVERYTHING = "import hybridperf as hp; [getattr(hp, name) for name in hp.__all__]"
FIRST_PREDICTION = """
import jax, jax.numpy as jnp, hybridperf as hp
def mlp(w, x): return jnp.tanh(x @ w).sum()
workload = hp.from_jax(jax.grad(mlp), jnp.ones((256, 256)), jnp.ones((64, 256)))
print(hp.predict(hp.PerfModel.datasheet(hp.load_device("here")), workload).time_s)
"""


def seconds(code: str, **environment: str) -> float:
    """Wall time of a fresh process; XLA's warnings about its cached programs go unseen."""
    start = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, **environment}, **quiet
    )
    return time.perf_counter() - start


def main() -> int:
    bare = min(seconds("pass") for _ in range(3))
    imported = min(seconds(IMPORT) for _ in range(3))
    print(f"python alone                     {bare:6.2f} s")
    print(f"import hybridperf                {imported:6.2f} s")
    print(f"all public names                 {min(seconds(EVERYTHING) for _ in range(3)):6.2f} s")
    with tempfile.TemporaryDirectory() as cache:
        kept = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        print(f"first prediction, empty cache    {seconds(FIRST_PREDICTION, **kept):6.2f} s")
        print(
            "first prediction, warm cache    "
            f" {min(seconds(FIRST_PREDICTION, **kept) for _ in range(3)):6.2f} s"
        )
    return int(imported > IMPORT_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
