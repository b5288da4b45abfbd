"""Accuracy claims recomputed: `python -m benchmarks.claims NAME --data FOLDER`, `make claims`."""

import os

# XLA reports tuning flags of its own cached programs as missing machine features, kilobytes each;
# before jax is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
