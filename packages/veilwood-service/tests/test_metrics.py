# SPDX-License-Identifier: Apache-2.0
"""What operators see: counts by route, and times of free predictions alone."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from veilwood_service.access import Metrics


def test_requests_are_counted_by_route_and_only_predictions_are_timed() -> None:
    metrics = Metrics()
    metrics.record_request("POST", "/v1/models/{number}/predict", 200, 0.002)
    metrics.record_request("POST", "/v1/models/{number}/answers", 200, 7.0)
    text = metrics.to_prometheus_text().decode()
    answers = 'veilwood_requests_total{method="POST",route="/v1/models/{number}/answers",status="200"} 1.0'
    assert answers in text
    assert "veilwood_prediction_seconds_count 1.0" in text
    assert "veilwood_prediction_seconds_sum 0.002" in text
    assert "_created" not in text, "when the first answer was ready may tell how large the table is"


def test_methods_that_clients_invent_are_counted_as_one() -> None:
    metrics = Metrics()
    before = len(metrics.to_prometheus_text())
    for number in range(50):
        metrics.record_request(f"BREW{number}", "none", 405, 0.001)
    text = metrics.to_prometheus_text().decode()
    assert 'method="other",route="none",status="405"} 50.0' in text
    assert len(text) < before + 400
