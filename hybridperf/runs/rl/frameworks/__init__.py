"""Frameworks of reinforcement learning, a TOML file each (`../framework.py`)."""
