# SPDX-License-Identifier: Apache-2.0
"""The methods: what each family of forests measures, learns and predicts. Families do not import each other."""
