# SPDX-License-Identifier: Apache-2.0
"""Drafting, reviewing and privately measuring a schema."""
