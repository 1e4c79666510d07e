"""The pytest marker in a real pytest."""

import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["MEMFIT_SOURCE"]
TESTS = """
import pytest
MODEL = %r

@pytest.mark.memfit(limit="12GiB", card="t4", batch_size=32)
def test_fits():
    return MODEL

@pytest.mark.memfit(limit="2GiB", card="t4", batch_size=32)
def test_does_not():
    return MODEL

@pytest.mark.memfit(limit="2GiB", card="t4", batch_size=32, as_asked=False)
def test_fits_in_pieces():
    return MODEL

@pytest.mark.memfit
def test_returns_nothing():
    pass

@pytest.fixture
def model(): return MODEL

@pytest.mark.memfit(card="t4")
def test_with_a_fixture(model):
    return model

def test_without_the_marker():
    pass
"""


class Marker(unittest.TestCase):
    def test_verdicts(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "test_models.py"), "w", encoding="utf-8") as f:
                f.write(TESTS % os.path.join(SOURCE, "tests/fixtures/plan/conv_pool_1024.json"))
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-p", "memfit._pytest", "-p", "no:cacheprovider", "-rA", "--strict-markers", folder],
                stdout=subprocess.PIPE, encoding="utf-8", check=False,
            )
        for line in ("PASSED", "FAILED"):
            print([w for w in done.stdout.splitlines() if w.startswith(line)])
        passed = {w.split("::")[1].split()[0] for w in done.stdout.splitlines() if w.startswith("PASSED")}
        self.assertEqual(passed, {"test_fits", "test_fits_in_pieces", "test_with_a_fixture", "test_without_the_marker"}, done.stdout)
        self.assertIn("memfit: ", done.stdout)
        self.assertIn("returns the model", done.stdout)


if __name__ == "__main__":
    unittest.main()
