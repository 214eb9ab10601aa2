"""The README says what the code does."""

from tests.tidy.tables import README, rendered


def test_the_tables_of_the_readme_are_those_of_the_code() -> None:
    text = README.read_text()
    assert rendered(text) == text, "run: python -m tests.tidy.tables"
