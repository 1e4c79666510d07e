"""The pytest marker: a test says what its model may take, and fails when it would take more.

    @pytest.mark.memfit(limit="6GiB", card="t4", batch_size=32)
    def test_model(): return build_model()

The test returns the model (or its path); memfit plans it after the test has run. `as_asked=True` (the default) allows
neither micro-batches nor recomputation: it asks what the program takes as written.
"""

from __future__ import annotations

from typing import Any, Dict


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers", "memfit(limit=None, card=None, batch_size=32, as_asked=True, **options): the model that the test returns must fit"
    )


def pytest_pyfunc_call(pyfuncitem: Any) -> Any:
    marker = pyfuncitem.get_closest_marker("memfit")
    if marker is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    model = pyfuncitem.obj(**{n: pyfuncitem.funcargs[n] for n in names})
    check(model, dict(marker.kwargs))
    return True


def check(model: Any, options: Dict[str, Any]) -> None:
    """Fails the test when the model does not fit what the marker says."""
    import pytest

    from . import plan

    limit, as_asked = options.pop("limit", None), bool(options.pop("as_asked", True))
    if model is None:
        pytest.fail("a test with the marker memfit returns the model, or its path", pytrace=False)
    told = plan(model, options.pop("batch_size", None), memory=limit, card=options.pop("card", None), **options)
    verdict = str(told).split("\n\n")[0]
    if options.get("runtime") not in (None, "memfit"):
        fits = told.in_framework.fits == "yes"
    else:
        fits = told.as_asked.fits if as_asked else told.fits
    if not fits:
        pytest.fail("memfit: " + verdict, pytrace=False)
