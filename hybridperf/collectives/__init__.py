"""Collectives: traffic over links, a fitted cost model, a prior over systems that rows adapt."""
