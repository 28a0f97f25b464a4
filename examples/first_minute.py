# SPDX-License-Identifier: Apache-2.0
"""The first minute: plan a private forest, fit it, evaluate it, predict, and save the model and a report.

Run: python examples/first_minute.py [FOLDER]
"""

import sys
from pathlib import Path

import veilwood as vw

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

schema, X, y = vw.datasets.car()

forest = vw.PrivateForestClassifier(schema, epsilon=2.0, random_state=0)
print(forest.plan())  # before any data: the releases, their privacy loss and their noise

forest.fit(X, y, holdout_fraction=0.3)  # the only step that touches private rows
print(f"\nOn the rows that a secret key set aside:\n{forest.evaluation_.quality}")
print(f"\nGuarantee, of fit and evaluation together: {forest.privacy_}")

vw.save(forest, folder / "car.veilwood")
assert (vw.load(folder / "car.veilwood").predict(X) == forest.predict(X)).all()
print(f"Model, with its certificate inside: {folder / 'car.veilwood'}")
print(f"A page to look at: {vw.report(forest, folder / 'car.html')}")
