# SPDX-License-Identifier: Apache-2.0
"""Protocols on shares: noise, selection, trees, and the sources and release doors of federated fits."""
