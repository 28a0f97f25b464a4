# SPDX-License-Identifier: Apache-2.0
"""Code that only reproduces the papers; nothing else in the library needs it."""
