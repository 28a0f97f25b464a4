# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of random decision trees."""
