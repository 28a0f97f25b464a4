# SPDX-License-Identifier: Apache-2.0
"""How accurate estimators are on suites of public tables, beside each other and other libraries.

Nothing here reads private rows, and nothing in the other rooms needs it.
"""
