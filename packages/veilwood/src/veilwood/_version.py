# SPDX-License-Identifier: Apache-2.0
"""Version of the library, read by the package and by the build."""

__version__ = "0.1.0"
