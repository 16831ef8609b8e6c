# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Each factor changes what it says, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tensorrt_llm_ext.configs.mla import YarnConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.agreement import propose
from tensorrt_llm_ext.diagnostics.canary.building import build_draft
from tensorrt_llm_ext.diagnostics.canary.opening import (
    STORED_D2T,
    Setting,
    inside,
    open_leniently,
)
from tensorrt_llm_ext.diagnostics.canary.variants import (
    Factor,
    all_factors,
    combine,
    with_attention_scale,
)
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tests.diagnostics.canary.conftest import EXAMPLE, random_states
from tests.support.faults import prune, read_draft, write_draft
from tests.support.tiny_models import CPU

ALL = frozenset(range(9))


@pytest.fixture(scope="module")
def declared(target: DeepseekV3) -> Setting:
    return open_leniently(EXAMPLE / "draft", target.config).declared


def factors(setting: Setting, config: TargetConfig, available=ALL, **given) -> dict[str, Factor]:
    found, _ = all_factors(setting, config, available, **given)
    assert len({factor.name for factor in found}) == len(found)
    return {factor.name: factor for factor in found}


def logits(setting: Setting, target: DeepseekV3) -> torch.Tensor:
    """Draft logits over one pass of random states, in float64."""
    double = Setting(config=setting.config, tensors=setting.tensors)
    draft = build_draft(double, _Ends(target), device=CPU, dtype=torch.float64, max_positions=64)
    (sequence,) = random_states(target.config, (24,)).sequences
    captured = torch.cat([sequence.states[b][:-1] for b in setting.config.boundaries], dim=-1)
    from tests.support.tiny_models import PagedSequences

    plan = PagedSequences(1, setting.config.mla.latent_size, max_len=32).plan(prefill=[(0, 0, 23)])
    with torch.inference_mode():
        state = draft.forward(
            draft.combine(captured), sequence.input_ids[1:], plan.positions, plan.ctx
        )
        return draft.compute_logits(state)


class _Ends:
    """The example target's ends in float64."""

    def __init__(self, target: DeepseekV3) -> None:
        from tensorrt_llm_ext.models.blocks import TorchBlocks

        config = target.config
        blocks = TorchBlocks(CPU, torch.float64)
        self.config = config
        self.embed_tokens = blocks.embedding("e", config.vocab_size, config.hidden_size)
        self.lm_head = blocks.lm_head("h", config.hidden_size, config.vocab_size)
        with torch.no_grad():
            self.embed_tokens.weight.copy_(target.embed_tokens.weight)
            self.lm_head.weight.copy_(target.lm_head.weight)


def test_the_example_has_all_kinds(declared: Setting, target: DeepseekV3) -> None:
    names = set(factors(declared, target.config))
    assert {
        "boundaries-1",
        "boundaries+1",
        "order[3,1,2]",
        "norm_output=off",
        "fc_norm=off",
        "norm_before_residual=on",
        "mscale=none",
        "mscale=rope",
        "rope=target",
        "rope=default",
        "boundary[2]+1",
    } <= names
    assert "mscale=softmax" not in names  # that is what it declares
    assert "norm_before_fc=on" not in names  # there are no tensors for it


def test_every_factor_changes_the_function(declared: Setting, target: DeepseekV3) -> None:
    before = logits(declared, target)
    for name, factor in factors(declared, target.config).items():
        if name == "norm_output=off":
            continue  # shows from the second draft token on
        changed = factor.change(declared)
        assert changed is not None
        difference = (logits(changed, target) - before).abs().max()
        assert difference > 1e-6, name


def test_shifts_go_by_layer_not_by_column(declared: Setting, target: DeepseekV3) -> None:
    found = factors(declared, target.config)
    both = combine(declared, (found["order[3,1,2]"], found["boundaries+1"]))
    assert both is not None
    assert both.config.boundaries == (8, 4, 6)
    single = combine(declared, (found["order[3,1,2]"], found["boundary[0]-1"]))
    assert single is not None
    assert single.config.boundaries == (7, 2, 5)


def test_shifts_without_states_are_named(declared: Setting, target: DeepseekV3) -> None:
    found, skipped = all_factors(declared, target.config, frozenset({3, 5, 7}))
    assert not any(factor.group == "boundaries" for factor in found)
    assert len(skipped) == 8
    assert "no states of boundaries [2, 4, 6]" in skipped[0]


def test_a_shift_stays_inside_the_target(declared: Setting, target: DeepseekV3) -> None:
    low = replace(declared, config=replace(declared.config, boundaries=(1, 2, 8)))
    names = set(factors(low, target.config))
    assert not {"boundaries-1", "boundaries+1", "boundary[0]-1", "boundary[0]+1"} & names


@pytest.mark.parametrize("mscales", [(1.0, 1.0), (1.0, None), (None, None), (0.7, 1.3)])
@pytest.mark.parametrize("wanted", ["softmax", "none", "rope"])
def test_attention_scales_are_exact_whichever_way_they_are_written(
    declared: Setting,
    target: DeepseekV3,
    mscales: tuple[float | None, float | None],
    wanted: str,
) -> None:
    """Folded into q_b_proj or said by mscale keys: the function is the wanted one."""
    config, yarn = declared.config, declared.config.mla.rope.yarn
    assert isinstance(yarn, YarnConfig)

    def said(mscale: float | None, all_dim: float | None) -> Setting:
        new = replace(yarn, mscale=mscale, mscale_all_dim=all_dim)
        rope = replace(config.mla.rope, yarn=new)
        tensors = {
            n: t.double() if t.is_floating_point() else t for n, t in declared.tensors.items()
        }
        return Setting(config=replace(config, mla=replace(config.mla, rope=rope)), tensors=tensors)

    factor = 0.1 * torch.tensor(4.0).log().item() + 1.0
    effects = {
        "softmax": ((factor**2, 1.0), said(1.0, 1.0)),
        "none": ((1.0, 1.0), said(1e-12, 1e-12)),
        "rope": ((1.0, factor), said(1.0, None)),
    }
    effect, expected = effects[wanted]
    changed = with_attention_scale(said(*mscales), effect)
    torch.testing.assert_close(
        logits(changed, target), logits(expected, target), rtol=1e-5, atol=1e-5
    )


def test_a_rope_keeps_the_attention_scale(declared: Setting, target: DeepseekV3) -> None:
    found = factors(declared, target.config)
    none = found["rope=default"].change(declared)
    assert none is not None
    assert none.config.mla.rope.yarn is None
    ratio = (
        none.tensors["layers.0.self_attn.q_b_proj.weight"].double()
        / declared.tensors["layers.0.self_attn.q_b_proj.weight"].double()
    )
    assert abs(float(ratio.nanmedian()) - 1.2965) < 0.01  # mscale^2 of factor 4
    other = found["rope=target"].change(declared)
    assert other is not None
    assert other.tensors == declared.tensors
    assert other.config.mla.rope.yarn is not None
    assert other.config.mla.rope.yarn.beta_fast == 32.0


def test_vocabulary_tables_are_read_in_every_way(tmp_path, target: DeepseekV3) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    keep = sorted({*range(0, 600, 2), 601, 602})
    config, tensors = prune(config, tensors, keep)
    ids = torch.arange(len(keep))
    offsets = tensors["d2t"]
    for stored, title in (
        (offsets + ids, "d2t read as target ids"),
        (offsets - ids, "d2t with draft ids added back"),
    ):
        folder = tmp_path / title.replace(" ", "_")
        write_draft(folder, config, {**tensors, "d2t": stored, "t2d": tensors["t2d"]})
        opened = open_leniently(folder, target.config)
        assert any("d2t" in problem for problem in opened.problems)
        declared = opened.declared
        assert torch.equal(declared.tensors[STORED_D2T], stored)
        assert torch.equal(declared.tensors["d2t"], inside(stored, 896))
        found = factors(declared, target.config)
        changed = found[f"d2t: {title}"].change(declared)
        assert changed is not None
        assert torch.equal(changed.tensors["d2t"], offsets)


def test_the_targets_embedding_is_tried_where_it_differs(
    declared: Setting, target: DeepseekV3
) -> None:
    table = target.embed_tokens.weight
    own = replace(
        declared,
        config=replace(declared.config, has_own_embedding=True),
        tensors={**declared.tensors, "embed_tokens.weight": table.roll(1, 0)},
    )
    found = factors(own, target.config, target_embedding=table)
    changed = found["embedding=target"].change(own)
    assert changed is not None
    assert not changed.config.has_own_embedding
    same = replace(own, tensors={**own.tensors, "embed_tokens.weight": table.clone()})
    assert "embedding=target" not in factors(same, target.config, target_embedding=table)


def test_norm_output_shows_in_the_chain(declared: Setting, target: DeepseekV3) -> None:
    (sequence,) = random_states(target.config, (24,)).sequences
    changed = factors(declared, target.config)["norm_output=off"].change(declared)
    assert changed is not None
    proposals = [
        propose(
            build_draft(setting, target, device=CPU, dtype=torch.float32),
            sequence,
            sequence.anchors(3),
            3,
        )
        for setting in (declared, changed)
    ]
    assert torch.equal(proposals[0][:, 0], proposals[1][:, 0])
    assert not torch.equal(proposals[0][:, 2], proposals[1][:, 2])
