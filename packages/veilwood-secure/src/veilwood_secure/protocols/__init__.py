# SPDX-License-Identifier: Apache-2.0
"""Protocols on shares: noise, selection, trees, and sources and doors for federated fits."""
