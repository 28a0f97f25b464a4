# SPDX-License-Identifier: Apache-2.0
"""Columns in cells, and private rows that are asked about them where they are."""
