"""The `hybridperf` command: a thin face on the library, a file a noun."""

import sys


def main(arguments: list[str] | None = None) -> None:
    """Entry point; `app.py` tells of errors and exit statuses."""
    try:
        from hybridperf.cli.app import main as run

        run(arguments)
    except KeyboardInterrupt:  # before a command has begun
        print("hybridperf: interrupted; files that were there are as they were", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
