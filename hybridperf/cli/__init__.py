"""The `hybridperf` command: a thin face on the library, a file a noun."""

from hybridperf.cli.app import main

__all__ = ["main"]
