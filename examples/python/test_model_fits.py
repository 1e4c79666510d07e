"""A test that fails when the model no longer fits: pytest test_model_fits.py"""

from __future__ import annotations

import os

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.memfit(limit="12GiB", card="t4", batch_size=32)
def test_model_fits() -> str:
    return os.path.join(HERE, "../../tests/fixtures/plan/conv_pool_1024.json")
