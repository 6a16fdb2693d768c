"""Which laws are tried on which configurations when not all are."""

import pytest

from tests.laws.configurations import CONFIGURATIONS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all but two laws of each configuration: the facts, and one of the others in turn."""
    cases = [item for item in items if isinstance(item, pytest.Function) and item.path.name == "test_laws.py"]
    laws = list(dict.fromkeys(item.originalname for item in cases))[1:]
    for item in cases:
        place = list(CONFIGURATIONS).index(item.callspec.params["case"])
        if item.originalname not in (
            laws[place % len(laws)],
            "test_who_takes_part_and_what_is_sent_is_what_it_was",
        ):
            item.add_marker(pytest.mark.slow)
