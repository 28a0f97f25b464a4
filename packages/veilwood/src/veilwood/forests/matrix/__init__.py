# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests: workloads, strategies, training and answering."""
