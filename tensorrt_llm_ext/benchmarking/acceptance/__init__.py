# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance of a draft, measured on any engine, judged, and held against a baseline."""
