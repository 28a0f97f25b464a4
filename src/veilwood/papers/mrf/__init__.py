# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of M-RF: Improving Private Random Forest Prediction Using Matrix Representation (AAAI 2025)."""
