"""Collectives: who sends what over which link, a closed form with fitted knobs, and what a prior
over systems and a few rows add.
"""
