# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a float draft to a quantized one, with the measure of what it costs.

`quantize_draft` is the whole of it: `texts` lets the target write and captures its states,
`backends` quantizes (`modelopt_backend` with ModelOpt; `recipes`, `calibration`, `packing` and
`fake_quant` without), `distill` trains where a recipe asks for it, `export` writes and checks, and
`agreement` and `acceptance` measure what was written. All of them run the draft of
`models.eagle3` over the blocks of `dense`. `fixer` mends what ModelOpt's own exporter of
speculative models wrote.
"""
