#!/usr/bin/env python3
"""Makes examples/data/digits.npz: the UCI handwritten digits as uint8, from scikit-learn's copy.

1797 images of 8x8 (values 0..16) and their labels, shuffled once with a fixed seed so that the last fifth is a fair
held-out part. Licence and source: examples/data/README.md.
"""
import sys

import numpy as np
from sklearn.datasets import load_digits

d = load_digits()
order = np.random.default_rng(0).permutation(len(d.target))
np.savez(sys.argv[1] if len(sys.argv) > 1 else "examples/data/digits.npz", x=d.images[order].astype("uint8"),
         y=d.target[order].astype("uint8"))
