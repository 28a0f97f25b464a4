# SPDX-License-Identifier: Apache-2.0
"""The command that writes a page about a model."""

from __future__ import annotations

from pathlib import Path

import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.models import file as signed
from veilwood.privacy import signature
from veilwood_testing.pages import Tags


def test_a_signed_model_by_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, random_state=0)
    forest.fit(car.X, car.y, holdout_fraction=0.3)
    vw.save(forest, "car.veilwood")
    forest.evaluation_.save("car.quality.json")
    signature.generate_key_pair("clinic.key")
    signed.sign("car.veilwood", "clinic.key")
    assert main(["report", "car.veilwood", "--signed-by", "clinic.key.pub", "-o", "car.html"]) == 0
    assert "car.html" in capsys.readouterr().out
    text = " ".join(Tags(Path("car.html").read_text(encoding="utf-8")).text)
    assert "is what the holder of clinic.key.pub has signed" in text
    assert "AUC" in text  # the evaluation beside the model was found
    assert main(["report", "car.veilwood", "-o", "car.html"]) == 2
    signature.generate_key_pair("other.key")
    assert main(["report", "car.veilwood", "--signed-by", "other.key.pub", "-o", "new.html"]) == 4
    assert not Path("new.html").exists()
