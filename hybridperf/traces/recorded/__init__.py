"""Steps as traces without times record them: ops with shapes, priced as ours."""
