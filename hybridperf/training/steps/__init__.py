"""Rows of training steps: what they say and cost, and what measured rows teach."""
