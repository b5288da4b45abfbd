"""`python -m hybridperf.cli` is the `hybridperf` command."""

from hybridperf.cli import main

main()
