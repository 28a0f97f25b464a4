# SPDX-License-Identifier: Apache-2.0
"""Forest structures and counting. Contains no noise mechanisms."""
