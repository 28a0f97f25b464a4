# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the paper on decision trees with secure computation and differential privacy."""
