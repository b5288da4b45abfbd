"""Accuracy claims, recomputed: predictions next to measurements, baselines and the noise floor."""
