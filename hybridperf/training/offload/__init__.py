"""Memory beyond the GPU's own: what may lie in CPU memory or on NVMe, and what fetching it costs a
step (ZeRO-Infinity, Rajbhandari et al. 2021).
"""
