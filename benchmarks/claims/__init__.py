"""Accuracy claims recomputed: `python -m benchmarks.claims NAME --data FOLDER`, `make claims`."""
