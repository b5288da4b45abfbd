"""The best point of a box: bounded knobs, an objective and constraints, all functions of a
differentiable prediction.

spec -> problem (unit cube in log space) -> descent from many starts -> polish on the exact function
-> whole numbers -> result
"""
