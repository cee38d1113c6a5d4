"""Which cases of a test run with every commit."""

import pytest


def nightly_but(cases, *daily):
    """The cases for parametrize, of which only those in `daily` run with every commit."""
    cases = list(cases)
    assert all(case in cases for case in daily)
    return [case if case in daily else pytest.param(case, marks=pytest.mark.nightly) for case in cases]
