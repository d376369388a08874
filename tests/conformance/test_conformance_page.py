"""`docs/conformance.md` is complete and up to date."""

from __future__ import annotations

import generate_conformance as generator


def promises() -> list[int]:
    return [number for section in generator.SECTIONS.values() for number in section]


def test_the_page_has_all_promises_and_failures_in_order() -> None:
    assert promises() == list(range(1, 130))
    assert list(generator.FAILURES) == [f"F{number}" for number in range(1, 27)]


def test_every_promise_has_a_test_or_is_marked_open() -> None:
    shown = {line for test in generator.tests() for line in test.lines}
    assert sorted(set(promises()) - shown) == sorted(generator.OPEN)
    assert all(reason.endswith(".") for reason in generator.OPEN.values())


def test_every_failure_has_a_test_or_a_reason_for_having_none() -> None:
    shown = {failure for test in generator.tests() for failure in test.failures}
    assert sorted(set(generator.FAILURES) - shown) == sorted(generator.CANNOT)
    assert all(answer.endswith(".") for _, answer in generator.FAILURES.values())


def test_markers_name_existing_promises_and_failures() -> None:
    for test in generator.tests():
        assert set(test.lines) <= set(promises()), f"{test.file}: {test.name}"
        assert set(test.failures) <= set(generator.FAILURES), f"{test.file}: {test.name}"


def test_every_case_of_kubernetes_has_an_existing_test() -> None:
    existing = generator.files_of_tests()
    missing = {test for cases in generator.UPSTREAM.values() for test in cases.values()} - existing.keys()
    assert not missing


def test_the_page_is_up_to_date() -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "run `make docs`"
