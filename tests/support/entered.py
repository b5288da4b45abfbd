"""Files of `hybridperf/` that a call enters: through how many hands an answer goes, and how often
it comes back to the same ones.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import hybridperf

_ROOT = f"{Path(hybridperf.__file__).parent}/"


def files_entered(call: Callable[[], object]) -> set[str]:
    """Files of the package, relative to it, whose functions run while something is called."""
    return {_file(callee) for _, callee in _calls(call)}


def entered_again(call: Callable[[], object]) -> Counter[str]:
    """How often each file of the package is entered after it was left, while something is called.

    A file is entered where a function of another file (or of another library that one called) calls
    one of its own. Calls of one function by one other count once: a loop over calls is one visit.
    """
    visits = {pair for pair in _calls(call) if pair[0] is None or _file(pair[0]) != _file(pair[1])}
    return Counter(_file(callee) for _, callee in visits) - Counter(
        {_file(callee) for _, callee in visits}
    )


def _calls(call: Callable[[], object]) -> set[tuple[CodeType | None, CodeType]]:
    """(calling function of the package, called one) of all calls into the package."""
    found = set()

    def ours(frame: FrameType | None) -> CodeType | None:
        while frame is not None and not frame.f_code.co_filename.startswith(_ROOT):
            frame = frame.f_back
        return None if frame is None else frame.f_code

    def enter(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            found.add((ours(frame.f_back), frame.f_code))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _file(code: CodeType) -> str:
    return code.co_filename.removeprefix(_ROOT)
