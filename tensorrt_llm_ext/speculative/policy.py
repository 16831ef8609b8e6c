# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How many drafts a request may have: the clipping rules of DESIGN section 4."""

from __future__ import annotations


def clip_draft_len(
    draft_len: int, num_tokens: int, max_seq_len: int, num_draft_positions: int
) -> int:
    """Clips a proposal of `draft_len` drafts for a request of `num_tokens` committed tokens.

    The drafts will be verified at positions `num_tokens - 1 + i`, which must stay below
    `max_seq_len`; draft i was proposed by the draft's row at position `num_tokens - 3 + i`, which
    must lie inside the draft's rotary table.

    Args:
        draft_len: Drafts proposed.
        num_tokens: Committed tokens of the request, after the step that proposed.
        max_seq_len: Positions that the target may use.
        num_draft_positions: Length of the draft's rotary table.

    Returns:
        The number of drafts to keep, 0 at least.
    """
    room_in_target = max_seq_len - num_tokens
    room_in_draft = num_draft_positions - (num_tokens - 2)
    return max(0, min(draft_len, room_in_target, room_in_draft))


def reserved_positions(num_tokens: int, num_drafts: int, draft_len: int, max_seq_len: int) -> int:
    """Cache positions that one step may write: `m + k + max(k' - 1, 0)`, within the limit.

    Args:
        num_tokens: Committed tokens, m.
        num_drafts: Pending drafts, k.
        draft_len: Drafts to be proposed, k'.
        max_seq_len: Positions that the target may use.
    """
    return min(num_tokens + num_drafts + max(draft_len - 1, 0), max_seq_len)
