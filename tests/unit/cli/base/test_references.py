"""The registry of error references, held against the code, the docs and the tests."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import kmigrate
from kmigrate.cli.base.references import references
from kmigrate.cli.reference.errors import page
from kmigrate.errors import Refused
from kmigrate.workflow.base.plan import Finding
from tests.provoked import PROVOKED
from tests.references import REFERENCE, constants_of, used_references

_ROOT = Path(kmigrate.__file__).parent


def _patterns() -> list[str]:
    return [text for text in used_references() if "*" in text]


def test_each_reference_in_the_code_is_explained() -> None:
    used = {text: modules for text, modules in used_references().items() if "*" not in text}
    assert len(used) > 400
    assert {text: sorted(modules) for text, modules in used.items() if text not in references()} == {}


def test_each_reference_that_is_made_of_parts_is_explained() -> None:
    patterns = _patterns()
    assert patterns
    assert [each for each in patterns if not any(fnmatchcase(ref, each) for ref in references())] == []


def test_each_explanation_is_used_by_the_code() -> None:
    texts = constants_of(_ROOT)
    left = [ref for ref in references() if ref not in texts]
    assert [ref for ref in left if not any(fnmatchcase(ref, each) for each in _patterns())] == []


def test_each_explanation_is_whole() -> None:
    """Each text is a sentence, or a command to type."""
    texts = [text for each in references().values() for text in (each.what, each.still_true, each.next_step)]
    assert [text for text in texts if not (text[0].isupper() or text.startswith(("kmigrate", "--")))] == []
    assert [text for text in texts if not text.endswith(".") and not text.startswith("kmigrate ")] == []
    assert [text for text in texts if max(len(part.split()) for part in re.split(r"[.:] ", text)) > 25] == []
    assert [ref for ref in references() if not REFERENCE.fullmatch(ref)] == []


def test_the_page_of_error_references_is_current() -> None:
    """Run `make docs` where this test fails."""
    assert (_ROOT.parent / "docs" / "errors.md").read_text(encoding="utf-8") == page()


def test_errors_and_findings_of_a_test_are_not_recorded_as_the_products() -> None:
    before = set(PROVOKED)
    Refused("made-by-a-test", "a test makes this error")
    Finding("warn", "found-by-a-test", "a test makes this finding")
    assert before == PROVOKED
