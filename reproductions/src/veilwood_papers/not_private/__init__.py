# SPDX-License-Identifier: Apache-2.0
"""Variants that follow a paper to the letter and are not private. Every result says so."""
