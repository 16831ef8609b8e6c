# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a draft's weights say without being run.

Drafts start from their target's head, or copy it, so each of their head rows lies nearest to the
target's row of the same token. Where it does not, rows were permuted, or `d2t` points elsewhere,
and the nearest rows say what the order must have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional

from tensorrt_llm_ext.configs.draft import DraftConfig

_CHUNK = 1024  # head rows at a time
_SAMPLE = 512  # head rows that are looked at first
_MAX_PRODUCTS_CPU = 10**13  # minutes
_MIN_COSINE = 0.5  # below this, a head was trained too far for its rows to be recognised
_ALIGNED = 0.9  # share of recognised rows that are nearest to their own token
_CONFIDENT = 0.98
BORROWED = "the target's own head rows"
_BALANCE = 20.0  # ratio of fc column blocks' norms that is worth a word


@dataclass(frozen=True, kw_only=True)
class WeightCheck:
    """One check.

    Attributes:
        name: Short stable name.
        is_ok: None when it could not be made.
        message: What was found.
        data: The same as values.
    """

    name: str
    is_ok: bool | None
    message: str
    data: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HeadMatch:
    """The draft's head rows against the target's.

    Attributes:
        nearest: [draft_vocab_size] int64, target row of the highest cosine.
        cosine: [draft_vocab_size], that cosine.
        mapped_cosine: [draft_vocab_size], cosine with the row that the vocabulary map says.
        is_mapped: [draft_vocab_size] bool, the row that the map says is as near as any.
    """

    nearest: torch.Tensor
    cosine: torch.Tensor
    mapped_cosine: torch.Tensor
    is_mapped: torch.Tensor

    @property
    def recognised(self) -> torch.Tensor:
        """[draft_vocab_size] bool, rows that resemble some row of the target."""
        return self.cosine >= _MIN_COSINE

    @property
    def is_comparable(self) -> bool:
        """Whether the two heads are of one family at all."""
        return float(self.recognised.double().mean()) >= _ALIGNED

    @property
    def aligned(self) -> float:
        """Share of recognised rows whose own token is nearest."""
        return float(self.is_mapped[self.recognised].double().mean())


@dataclass(frozen=True, kw_only=True)
class HeadFindings:
    """What a draft's head says beside its target's.

    Attributes:
        check: Whether its rows stand where the vocabulary map says.
        heads: Other heads to try, by title.
        maps: Other d2t tables to try, by title.
    """

    check: WeightCheck
    heads: Mapping[str, torch.Tensor] = field(default_factory=dict)
    maps: Mapping[str, torch.Tensor] = field(default_factory=dict)


def examine_head(
    head: torch.Tensor, target_head: torch.Tensor, ids: torch.Tensor, device: torch.device
) -> HeadFindings:
    """Compares a sample of the head's rows with the target's, and all of them if they disagree.

    Args:
        head: [draft_vocab_size, hidden_size].
        target_head: [vocab_size, hidden_size].
        ids: [draft_vocab_size] int64, target id of each draft id.
        device: Where to compare.
    """
    target_head = target_head.to(device)
    rows = torch.linspace(0, ids.numel() - 1, min(_SAMPLE, ids.numel())).round().long()
    sample = match_heads(head[rows], target_head, ids[rows])
    check = head_check(sample)
    if check.is_ok is not False:
        return HeadFindings(check=check)
    borrowed = {BORROWED: target_head[ids.to(device)].to("cpu", head.dtype)}
    if device.type == "cpu" and head.numel() * target_head.shape[0] > _MAX_PRODUCTS_CPU:
        message = f"{check.message}; finding their order takes a GPU (--device cuda)"
        return HeadFindings(check=replace(check, message=message), heads=borrowed)
    match = match_heads(head, target_head, ids)
    return HeadFindings(
        check=head_check(match),
        heads={**reordered_heads(head, match, ids), **borrowed},
        maps=repaired_maps(match, ids),
    )


def match_heads(head: torch.Tensor, target_head: torch.Tensor, ids: torch.Tensor) -> HeadMatch:
    """Finds the target row nearest to each row of a draft's head.

    Args:
        head: [rows, hidden_size], some or all rows.
        target_head: [vocab_size, hidden_size]; on the device that is to compare.
        ids: [rows] int64, target id of each row.
    """
    device = target_head.device
    rows = functional.normalize(target_head.float(), dim=1)
    nearest, cosine, mapped = [], [], []
    for part, own in zip(torch.split(head, _CHUNK), torch.split(ids, _CHUNK), strict=True):
        scores = functional.normalize(part.to(device).float(), dim=1) @ rows.T
        best = scores.max(dim=1)
        nearest.append(best.indices.cpu())
        cosine.append(best.values.cpu())
        mapped.append(scores.gather(1, own.to(device).unsqueeze(1)).squeeze(1).cpu())
    best_cosine, mapped_cosine = torch.cat(cosine), torch.cat(mapped)
    return HeadMatch(
        nearest=torch.cat(nearest),
        cosine=best_cosine,
        mapped_cosine=mapped_cosine,
        # Tokens that never occur share one row in many targets: a tie is no contradiction.
        is_mapped=mapped_cosine >= best_cosine - 0.01,
    )


def head_check(match: HeadMatch) -> WeightCheck:
    """Judges whether the head's rows stand where the vocabulary map says."""
    data = {
        "aligned": match.aligned if match.is_comparable else float("nan"),
        "recognised": float(match.recognised.double().mean()),
        "mapped_cosine": float(match.mapped_cosine.median()),
        "best_cosine": float(match.cosine.median()),
    }
    if not match.is_comparable:
        return WeightCheck(
            name="head rows",
            is_ok=None,
            message=(
                f"only {data['recognised']:.0%} of the head's rows resemble a row of the target's "
                "head: it was trained on its own, so its order cannot be checked"
            ),
            data=data,
        )
    is_ok = match.aligned >= _ALIGNED
    message = (
        f"{match.aligned:.1%} of the head's rows are nearest to the target's row of their own "
        f"token (median cosine {data['mapped_cosine']:.3f})"
    )
    if not is_ok:
        message += (
            f"; the nearest rows have {data['best_cosine']:.3f}: the rows are permuted, or the "
            "vocabulary map points elsewhere"
        )
    return WeightCheck(name="head rows", is_ok=is_ok, message=message, data=data)


def reordered_heads(
    head: torch.Tensor, match: HeadMatch, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The head with its rows where the nearest target rows say, if these are one per token."""
    order = _order(match, ids)
    return {} if order is None else {"head rows in the target's order": head[order].clone()}


def _order(match: HeadMatch, ids: torch.Tensor) -> torch.Tensor | None:
    """[draft_vocab_size] row to take for each draft id, where the nearest rows are a bijection.

    Rows nearest to a token that another row claims with a higher cosine, and rows that resemble
    nothing, fill what is left over, in order.
    """
    position = {token: index for index, token in enumerate(ids.tolist())}
    order = torch.full_like(match.nearest, -1)
    used = torch.zeros(order.numel(), dtype=torch.bool)
    for row in match.cosine.argsort(descending=True).tolist():
        place = position.get(int(match.nearest[row]))
        if place is not None and order[place] < 0 and match.cosine[row] >= _MIN_COSINE:
            order[place], used[row] = row, True
    if float(used.double().mean()) < _ALIGNED:
        return None
    order[order < 0] = (~used).nonzero().flatten()
    return order


def repaired_maps(match: HeadMatch, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Maps to try: the one that the head's nearest rows say, if it rises strictly."""
    nearest = match.nearest
    rises = float((nearest[1:] > nearest[:-1]).double().mean())
    if torch.unique(nearest).numel() < nearest.numel() or rises < _CONFIDENT:
        return {}
    return {"the map that the head's rows say": nearest - torch.arange(nearest.numel())}


def plain_checks(
    config: DraftConfig, tensors: Mapping[str, torch.Tensor]
) -> tuple[WeightCheck, ...]:
    """Checks that need no target: numbers, constants, norms of the fc's column blocks."""
    bad, constant = [], []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        values = tensor.float()
        if not bool(torch.isfinite(values).all()):
            bad.append(name)
        elif tensor.dim() == 2 and float(values.amax() - values.amin()) == 0.0:
            constant.append(name)
    checks = [
        WeightCheck(
            name="finite values",
            is_ok=not bad,
            message=f"NaN or infinity in {', '.join(bad)}" if bad else "every value is finite",
        ),
        WeightCheck(
            name="constant matrices",
            is_ok=not constant,
            message=(
                f"all values equal in {', '.join(constant)}: never trained, or lost in an export"
                if constant
                else "no matrix is constant"
            ),
        ),
    ]
    fc = tensors.get("fc.weight")
    if fc is not None and config.num_captured > 1:
        checks.append(_fc_check(fc.float(), config.num_captured))
    return tuple(checks)


def _fc_check(fc: torch.Tensor, num_captured: int) -> WeightCheck:
    norms = [float(block.norm()) for block in fc.chunk(num_captured, dim=1)]
    spread = max(norms) / max(min(norms), 1e-30)
    shown = ", ".join(f"{norm:.3g}" for norm in norms)
    is_ok = spread <= _BALANCE
    hint = "" if is_ok else ": one captured layer is hardly used"
    return WeightCheck(
        name="fc column blocks",
        is_ok=is_ok,
        message=f"norms {shown}{hint}",
        data={f"block {i}": norm for i, norm in enumerate(norms)},
    )


def embedding_check(own: torch.Tensor, target: torch.Tensor, sample: int = 512) -> WeightCheck:
    """Compares a draft's own embedding with the target's, on rows spread over the vocabulary."""
    if own.shape != target.shape:
        return WeightCheck(
            name="embedding rows",
            is_ok=None,
            message=f"of shape {list(own.shape)}, the target's of {list(target.shape)}",
        )
    rows = torch.linspace(0, own.shape[0] - 1, min(sample, own.shape[0])).round().long()
    cosine = functional.cosine_similarity(own[rows].float(), target[rows].float(), dim=1)
    median = float(cosine.median())
    return WeightCheck(
        name="embedding rows",
        is_ok=median >= _MIN_COSINE or None,
        message=f"median cosine with the target's rows {median:.3f}",
        data={"median_cosine": median},
    )
