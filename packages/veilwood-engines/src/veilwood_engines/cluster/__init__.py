# SPDX-License-Identifier: Apache-2.0
"""Sources and backends for frames of Dask, Spark and Ray."""
