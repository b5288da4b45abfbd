"""Moves on the page: how long answers of its views take; and whether memory grows in a minute of
twenty moves a second.

    python benchmarks/bench_moves.py [SECONDS]

Needs a headless Chromium, as `tests/page` does.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.headless import Browser, Tab, find_browser
from support.served_page import MOVED, asked_often, held_bytes, keep_moving, processor_s, served

PARTS, _A_SECOND = 6, 20
_VIEW = "#step?model=gpt2-xl&tp=1&pp=1&n_gpus=8&sharding=none"
_ANSWERED = "Number(document.querySelector('[data-question=step]')?.dataset.answered ?? 0)"
_READY = "Boolean(document.querySelector('[data-knob]'))"
_OFTEN = 20


def main(seconds: float) -> None:
    program = find_browser()
    if program is None:
        sys.exit("expected a headless Chromium, found none; install chromium")
    start = time.monotonic()
    with served() as page:
        print(f"the address is there after {time.monotonic() - start:.1f} s")
        browser = Browser(program)
        try:
            start = time.monotonic()
            tab = Tab(browser, page.address + _VIEW)
            while not tab.value(f"{_ANSWERED} > 0"):
                time.sleep(0.05)
            print(f"the first answer after {time.monotonic() - start:.1f} s")
            while not tab.value(_READY):
                time.sleep(0.1)
            print(f"the graph with its elasticities after {time.monotonic() - start:.1f} s")
            print("view      of a clock, ms: median  slowest  of processor, ms")
            for view in MOVED:
                asked_often(tab, view, _OFTEN)  # the first of each is not a move
                before_s = processor_s(page)
                took = asked_often(tab, view, _OFTEN)
                each_ms = 1e3 * (processor_s(page) - before_s) / _OFTEN
                print(f"{view:9} {took[len(took) // 2]:21.0f} {took[-1]:8.0f} {each_ms:17.0f}")
            keep_moving(tab, 100)
            print("seconds  moves  answers  page MB  server MB")
            moves = 0
            for part in range(PARTS + 1):
                held = held_bytes(tab, page)
                answered = tab.value(_ANSWERED)
                mb = f"{held['page'] / 1e6:7.2f}  {held['server'] / 1e6:9.1f}"
                print(f"{part * seconds / PARTS:7.0f}  {moves:5d}  {answered:7d}  {mb}", flush=True)
                if part < PARTS:
                    keep_moving(tab, int(_A_SECOND * seconds / PARTS))
                    moves += int(_A_SECOND * seconds / PARTS)
        finally:
            browser.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
