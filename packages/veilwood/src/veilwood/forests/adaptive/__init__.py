# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: an adaptive ensemble that selects its measurements from public facts and released values."""
