# SPDX-License-Identifier: Apache-2.0
"""Tables of Dask, Spark and Ray, counted where they are."""
