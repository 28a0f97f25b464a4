# SPDX-License-Identifier: Apache-2.0
"""Estimators that follow a paper to the letter and are NOT PRIVATE, as every result states."""
