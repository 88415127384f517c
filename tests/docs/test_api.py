from importlib import import_module

import pytest
from site_generator.api import PUBLIC, docstring, module_page, signature, undocumented


class Example:
    """A class for the tests."""

    def step(self, other: "Example", name: str = "a", *, many: int | None = None) -> "list[str]":
        """Return names.

            step(1)

        All of ``them``, even a_b.
        """
        return [name]


def test_a_signature_is_as_written_without_self_and_quotes_around_types() -> None:
    assert signature(Example.step) == (
        "(other: Example, name: str='a', *, many: int | None=None) -> list[str]"
    )


def test_indented_parts_of_a_docstring_are_code() -> None:
    assert docstring(Example.step) == (
        "Return names.\n\n```python\nstep(1)\n```\n\nAll of ``them``, even a\\_b.\n\n"
    )


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented() == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_its_page(module: str) -> None:
    page = module_page(module)
    for name in import_module(module).__all__:
        assert name.startswith("__") or f"\n## {name}\n" in page
