# SPDX-License-Identifier: Apache-2.0
"""Dask, Spark and Ray."""
