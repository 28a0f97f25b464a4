# SPDX-License-Identifier: Apache-2.0
"""Secure three-party computation on replicated secret shares."""
