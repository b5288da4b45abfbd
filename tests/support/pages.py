"""Pages as a browser reads them."""

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "input"}


class Elements(HTMLParser):
    """Every element with its attributes and text; broken nesting is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []  # innermost element, text

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> ends nothing"
        assert self.open[-1] == tag, f"</{tag}> within {self.open[-4:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag == name]


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    assert not elements.open
    return elements
