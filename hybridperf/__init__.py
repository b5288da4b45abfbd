"""Predict how long machine-learning work takes on a machine before anyone runs it there.

    import hybridperf as hp

    model = hp.load_model("my-machine")               # a folder that `hybridperf calibrate` made
    workload = hp.from_jax(train_step, state, batch)  # compile it, read what XLA will run
    print(hp.predict(model, workload).time_s)

`__init__.pyi` lists the public names. Each is imported when it is first used, so that importing the
package costs little.
"""

import os
import sys
from typing import Any

import lazy_loader

__version__ = "0.1.0"

if "JAX_COMPILATION_CACHE_DIR" in os.environ and "jax" not in sys.modules:
    # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes
    # each; what fails raises all the same
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _load(name)
    raise AttributeError(f"module 'hybridperf' has no attribute {name!r}; {', '.join(__all__)}")
