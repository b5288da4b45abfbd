"""`python -m hybridperf.cli` is the `hybridperf` command."""

from hybridperf.cli.app import main

main()
