"""One server for all tests of the page that one process runs."""

from collections.abc import Iterator

import pytest
from support.served_page import Served, served


@pytest.fixture(scope="session")
def page() -> Iterator[Served]:
    with served() as found:
        yield found
