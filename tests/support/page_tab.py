"""What tests read from the page in a browser, and how they move it.

`axe.min.js` is the checker that `axe-core-python` ships.
"""

import json
import shlex
import time
from importlib import resources

from support.headless import Tab

from hybridperf.cli.ask import ask

_PATIENCE_S = 300.0
SETTLED = (
    "[...document.querySelectorAll('[data-asked]')].length > 0 &&"
    " [...document.querySelectorAll('[data-asked]')]"
    ".every(one => one.dataset.asked === one.dataset.answered)"
)


def wait_for(tab: Tab, expression: str, what: str = "") -> None:
    """Until an expression holds in the page."""
    until = time.monotonic() + _PATIENCE_S
    while not tab.value(f"Boolean({expression})"):
        status = "[...document.querySelectorAll('.status')].map(n => n.textContent).join()"
        assert time.monotonic() < until, (what or expression, tab.value(status))
        time.sleep(0.05)


def shown(tab: Tab, name: str) -> float:
    """The number of a card."""
    return float(tab.value(f"document.querySelector('[data-name=\"{name}\"]').dataset.value"))


def command_of(tab: Tab, question: str) -> str:
    """The words that the button copies."""
    inside = f"document.querySelector('[data-question={question}] .command').textContent"
    return str(tab.value(inside))


def answer_of(command: str) -> dict:
    """What a command that was copied answers, in this process."""
    words = shlex.split(command)
    assert words[0] == "hybridperf"
    return ask(*words[1:])


def move(tab: Tab, field: str, value: object) -> None:
    """Move a field as a reader does: its events are the page's."""
    tab.value(
        f"(() => {{ const node = document.getElementById('field-{field}'); node.value = '{value}';"
        " for (const kind of ['input', 'change'])"
        " node.dispatchEvent(new Event(kind, { bubbles: true })); })()"
    )


def axe(tab: Tab) -> list[str]:
    """Serious findings of axe-core."""
    script = resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    tab.value(f"(() => {{ {script}; return 1; }})()")
    found = tab.value("axe.run(document).then(all => JSON.stringify(all.violations))")
    bad = [one for one in json.loads(found) if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in bad]
