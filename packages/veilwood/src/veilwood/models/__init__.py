# SPDX-License-Identifier: Apache-2.0
"""Fitted forests outside Python: model files and ONNX."""
