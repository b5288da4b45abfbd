"""Files of `hybridperf/` that a call enters: through how many hands an answer goes."""

import sys
from collections.abc import Callable
from pathlib import Path

import hybridperf

_ROOT = Path(hybridperf.__file__).parent


def files_entered(call: Callable[[], object]) -> set[str]:
    """Files of the package, relative to it, whose functions run while something is called."""
    found: set[str] = set()

    def enter(frame, event, argument):
        if event == "call":
            found.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    inside = (Path(name) for name in found if name.startswith(str(_ROOT)))
    return {str(path.relative_to(_ROOT)) for path in inside}
