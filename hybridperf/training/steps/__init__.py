"""Rows of training steps: what they say, what their parts cost, how these make a step, and what
measured rows teach.
"""
