# SPDX-License-Identifier: Apache-2.0
"""Fixtures of clusters; ``here`` takes the place of the one that all packages share."""

from veilwood_testing.clusters import client, here, ray, spark

__all__ = ["client", "here", "ray", "spark"]
