# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of DiPriMe: Balance is key, private median splits (Consul and Williamson, 2020)."""
