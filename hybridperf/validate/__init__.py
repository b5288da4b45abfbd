"""Claims of accuracy, recomputed: what was predicted beside what was measured, with null models and
the noise floor.
"""
