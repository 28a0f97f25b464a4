# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests of all packages share."""

pytest_plugins = ["veilwood_testing.fixtures"]
