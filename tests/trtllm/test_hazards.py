# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What goes wrong with MLA drafts in the host, one by one: right with us, wrong without.

Each test starts from a draft that upstream serves as we do (`test_what_upstream_can_serve`), and
changes one thing. Right means the tokens and the acceptance of the embedded engine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tests.trtllm import variants as v
from tests.trtllm.conftest import embedded
from tests.trtllm.host import ERAS
from tests.trtllm.serving import EXAMPLE, Served, environ, prompts, serve, target_for

CAPTURED = {2, 4, 6}
COUNT, LONG = 2, 16
KV_B = "model.midlayer.self_attn.kv_b_proj"  # as the host names it
PACKED = (v.known_type, v.host_names, v.unpack("lm_head"))  # what E3 can serve of NVFP4
OLDER = ("e1", "e2")


class Bench:
    """Serves drafts with this package and without."""

    def __init__(self, drafts: v.Drafts, unwrapped: Path) -> None:
        self.make, self.unwrapped = drafts.make, unwrapped

    def target(self, era: str) -> Path:
        return target_for(era, self.unwrapped)

    def ours(self, era: str, draft: Path, mode: str = "w4a4", **options) -> Served:
        """Serves with this package, and compares with the embedded engine."""
        target = options.pop("target", None) or self.target(era)
        count = options.pop("count", COUNT)
        served = serve(era, target, draft, prompts(count), max_tokens=LONG, **options)
        wanted = embedded(
            draft, count, LONG, target.name if target.parent == EXAMPLE else target, mode
        )
        assert served.tokens == wanted.tokens
        assert served.acceptance == wanted.acceptance
        assert served.info[0]["draft_class"].startswith("tensorrt_llm_ext.")
        return served

    def stock(self, era: str, draft: Path, **options) -> Served:
        """Serves without this package."""
        options = {"layers": CAPTURED, "target": self.target(era)} | options
        target = options.pop("target")
        options |= {"ours": False, "max_tokens": LONG}
        return serve(era, target, draft, prompts(options.pop("count", COUNT)), **options)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, unwrapped: Path) -> Bench:
    return Bench(v.Drafts(tmp_path_factory.mktemp("drafts")), unwrapped)


@pytest.fixture(autouse=True)
def fresh_transformers() -> Iterator[None]:
    """Registered types of configs outlive a host; each test begins without."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    CONFIG_MAPPING._extra_content.pop("kimi_k2", None)
    yield
    CONFIG_MAPPING._extra_content.pop("kimi_k2", None)


@pytest.mark.parametrize("era", ERAS)
def test_what_upstream_can_serve(bench: Bench, era: str) -> None:
    draft = bench.make("friendly", "draft", *v.FRIENDLY)
    served, stock = bench.ours(era, draft), bench.stock(era, draft)
    assert stock.acceptance == served.acceptance
    assert stock.info[0]["draft_class"].startswith("tensorrt_llm._torch.")
    assert served.acceptance[1] > 0


def test_what_upstream_can_serve_packed(bench: Bench) -> None:
    draft = bench.make("packed", "draft-nvfp4", *PACKED, excludes=[KV_B])
    assert bench.stock("e3", draft).acceptance == bench.ours("e3", draft).acceptance


def test_exclude_names_of_modelopt(bench: Bench) -> None:
    """`layers.0.self_attn.kv_b_proj` is no module of the host: it expects a packed weight."""
    draft = bench.make("names of ModelOpt", "draft-nvfp4", *PACKED)
    bench.ours("e3", draft)
    with pytest.raises(KeyError, match="input_scale"):
        bench.stock("e3", draft)


@pytest.mark.parametrize("pattern", ["*self_attn*", "*kv_a_proj*", "*fc*"])
def test_excludes_of_the_target(bench: Bench, tmp_path: Path, pattern: str) -> None:
    """The target's patterns reach the draft below it, whose weights E3 then makes anew."""
    target = shutil.copytree(EXAMPLE / "target-nvfp4", tmp_path / "target")
    document = target / "hf_quant_config.json"
    values = json.loads(document.read_text(encoding="utf-8"))
    values["quantization"]["exclude_modules"].append(pattern)
    document.write_text(json.dumps(values), encoding="utf-8")
    draft = EXAMPLE / "draft-nvfp4"
    bench.ours("e3", draft, target=target)

    def unseal() -> None:
        from tensorrt_llm_ext.trtllm import modeling

        del modeling.DraftMethods.named_modules

    with pytest.raises((AssertionError, RuntimeError), match=r"copy_weight|shape"):
        bench.ours("e3", draft, target=target, before=unseal)


def test_fc_packed(bench: Bench) -> None:
    """E1 gives fc no format, whatever the draft says."""
    draft = bench.make("packed fc", "draft-nvfp4", *v.FRIENDLY, v.unpack("lm_head"))
    bench.ours("e1", draft)
    with pytest.raises(AssertionError, match=r"copy_weight: \(256, 768\)"):
        bench.stock("e1", draft)


@pytest.mark.parametrize("era", ERAS[1:])
def test_fc_in_bf16(bench: Bench, era: str) -> None:
    """Later versions build fc in the draft's format, and `fc` is not how they name it."""
    changes = (*PACKED, v.unpack("fc"))
    draft = bench.make("bf16 fc", "draft-nvfp4", *changes, excludes=[KV_B, "fc"])
    served = bench.ours(era, draft)
    with pytest.raises(KeyError, match="input_scale"):
        bench.stock(era, draft)
    if era == "e3":
        excludes = [KV_B, "model.fc"]
        named = bench.make("bf16 fc, named", "draft-nvfp4", *changes, excludes=excludes)
        assert bench.stock(era, named).acceptance == served.acceptance


@pytest.mark.parametrize("era", OLDER)
def test_kv_b_route(bench: Bench, era: str) -> None:
    """A pattern that matches the bare name sends a bf16 kv_b down the FP8 route."""
    fc = ("fc",) if era == "e1" else ()  # where each version gets that far
    changes = (*v.FRIENDLY, v.unpack("lm_head", *fc))
    draft = bench.make(f"kv_b {era}", "draft-nvfp4", *changes, excludes=["*kv_b_proj*"])
    bench.ours(era, draft)
    with pytest.raises(KeyError, match=r"kv_b_proj\.weight_scale_inv"):
        bench.stock(era, draft)


def _keep_scales() -> None:
    from tensorrt_llm_ext.trtllm import loading

    loading.share_scales = tuple


def test_scales_of_gate_and_up(bench: Bench) -> None:
    change = v.own_scale("midlayer.mlp.up_proj", 0.5)
    draft = bench.make("scales of up", "draft-nvfp4", *PACKED, change, excludes=[KV_B])
    bench.ours("e3", draft)
    for wrong in (lambda: bench.stock("e3", draft), lambda: _unshared(bench, draft)):
        with pytest.raises(AssertionError, match="weight_scale_2 differs"):
            wrong()


def _unshared(bench: Bench, draft: Path) -> Served:
    options = {"before": _keep_scales, "max_tokens": LONG}
    return serve("e3", bench.target("e3"), draft, prompts(COUNT), **options)


def test_scales_of_the_first_projection(bench: Bench) -> None:
    change = v.own_scale("midlayer.self_attn.q_a_proj", 16.0)
    draft = bench.make("scales of q_a", "draft-nvfp4", *PACKED, change, excludes=[KV_B])
    served = bench.ours("e3", draft)
    assert _unshared(bench, draft).acceptance != served.acceptance


def test_half_of_the_first_projection_packed(bench: Bench) -> None:
    change = v.unpack("midlayer.self_attn.q_a_proj")
    draft = bench.make("half packed", "draft-nvfp4", *PACKED, change, excludes=[KV_B])
    bench.ours("e3", draft)
    with pytest.raises((KeyError, RuntimeError, AssertionError)):
        bench.stock("e3", draft)


@pytest.mark.parametrize("era", OLDER)
def test_packed_head(bench: Bench, era: str) -> None:
    draft = bench.make("packed head", "draft", *v.FRIENDLY, v.pack("lm_head", 5.0))
    bench.ours(era, draft)
    with pytest.raises(AssertionError, match=r"copy_weight: \(896, 256\)"):
        bench.stock(era, draft)


@pytest.mark.parametrize("era", ERAS)
def test_reduced_vocabulary(bench: Bench, era: str) -> None:
    """The body of upstream's draft owns d2t, so its loader copies the whole body blindly."""
    draft = bench.make("d2t", "draft", *v.FRIENDLY, v.reduced_vocabulary)
    bench.ours(era, draft)
    with pytest.raises(KeyError, match="weight"):
        bench.stock(era, draft)


NAMES = {
    "layers.0": (OLDER[:1], (v.known_type, v.plain_norms)),
    "model.layers.0": (ERAS, (v.known_type, v.plain_norms, v.below("model."))),
}


@pytest.mark.parametrize(
    ("era", "name"), [(era, name) for name, (eras, _) in NAMES.items() for era in eras]
)
def test_names_of_tensors(bench: Bench, era: str, name: str) -> None:
    draft = bench.make(f"names {name}", "draft", *NAMES[name][1])
    bench.ours(era, draft)
    with pytest.raises(KeyError, match="weight"):
        bench.stock(era, draft)


@pytest.mark.parametrize("era", ERAS)
def test_captured_layers(bench: Bench, era: str) -> None:
    """Upstream takes its own default; nothing of the draft says which layers it was trained on."""
    draft = bench.make("friendly", "draft", *v.FRIENDLY)
    served = bench.ours(era, draft, count=3)
    stock = bench.stock(era, draft, count=3, layers=None)
    assert (served.info[0]["layers_to_capture"], stock.info[0]["layers_to_capture"]) == (
        [2, 4, 6],
        [1, 3, 4],
    )
    assert stock.acceptance[1] < served.acceptance[1]
    with pytest.raises(ConfigError, match=r"\[1, 3, 4\].*\[2, 4, 6\]") as caught:
        bench.ours(era, draft, layers={1, 3, 4})
    assert caught.value.check == "V12"


@pytest.mark.parametrize("era", ERAS)
def test_settings_of_the_executor(bench: Bench, era: str) -> None:
    """The host builds a target from a deep copy of the settings that its executor reads."""
    draft = bench.make("friendly", "draft", *v.FRIENDLY)

    def copy_alone() -> None:
        from tensorrt_llm_ext.trtllm import capture

        capture.prepare_loader = lambda *_: None

    if era == "e1":
        served = serve(era, bench.target(era), draft, prompts(1), before=copy_alone)
        assert served.info[0]["layers_to_capture"] == [1, 3, 4]
    else:
        with pytest.raises(KeyError, match="no slot in the cache"):
            serve(era, bench.target(era), draft, prompts(1), before=copy_alone)


def test_d2t_that_a_worker_keeps(bench: Bench) -> None:
    """It is taken while the model has no memory yet."""
    draft = bench.make("d2t", "draft", *v.FRIENDLY, v.reduced_vocabulary)

    def forget() -> None:
        from tensorrt_llm_ext.trtllm import registered

        del registered.PreparesDraft.post_load_weights

    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        bench.ours("e3", draft, before=forget)


@pytest.mark.parametrize("era", ERAS)
def test_rope_without_scaling(bench: Bench, era: str) -> None:
    """The kernels of MLA read YaRN's layout of a table, whatever else the host can make."""
    draft = bench.make("unscaled", "draft", v.unscaled)
    bench.ours(era, draft, count=8)

    def say_so() -> None:
        from tensorrt_llm_ext.trtllm import blocks

        yarn = blocks.rope_parameters

        def unscaled(host: Any, config: Any) -> Any:
            found = yarn(host, config)
            found.rope.scale_type = host.symbol("RotaryScalingType").none
            return found

        blocks.rope_parameters = unscaled

    with pytest.raises(AssertionError):
        bench.ours(era, draft, count=8, before=say_so)


def test_rope_in_the_spelling_of_transformers_5(bench: Bench) -> None:
    """`rope_parameters` alone: upstream falls back to an unscaled table of another base."""
    draft = bench.make("rope", "draft", v.known_type, v.host_names, v.transformers_5)
    healthy = bench.make("3.1", "draft", v.known_type, v.host_names)
    served = bench.ours("e3", draft)
    assert served.acceptance == bench.stock("e3", healthy).acceptance
    assert bench.stock("e3", draft).acceptance != served.acceptance


@pytest.mark.parametrize("era", OLDER)
def test_flags_of_norms(bench: Bench, era: str) -> None:
    """Older versions read neither `fc_norm` nor `norm_output`."""
    draft = bench.make("3.1", "draft", v.known_type, v.host_names)
    served = bench.ours(era, draft)
    assert 2 * bench.stock(era, draft).acceptance[1] < served.acceptance[1]


def test_no_fp4_on_hopper(bench: Bench) -> None:
    draft = bench.make("packed", "draft-nvfp4", *PACKED, excludes=[KV_B])
    with environ(TRTLLM_DOUBLE_SM="90"):
        bench.ours("e3", draft, "dequantized", dtype="float64")
        unsupported = pytest.raises(RuntimeError, match="Arch unsupported for CUTLASS FP4 GEMM")
        with unsupported, environ(TRTLLM_EXT_DRAFT_QUANT="native"):
            bench.ours("e3", draft)
        with unsupported:
            bench.stock("e3", draft)


def _with_file(folder: Path) -> None:
    (folder / "modeling_draft.py").write_text("raise SystemExit\n", encoding="utf-8")


def _with_auto_map(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "configuration_draft.Config"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("plant", [_with_file, _with_auto_map])
def test_code_in_the_folder_of_a_draft(bench: Bench, plant: Callable[[Path], None]) -> None:
    """The host reads a draft's folder with remote code trusted; we refuse it before."""
    draft = bench.make(f"code {plant.__name__}", "draft", *v.FRIENDLY)
    plant(draft)
    read: list[tuple[str, bool]] = []

    def spy() -> None:
        from trtllm_double import args

        original = args.load_config

        def load_config(folder: str, trust_remote_code: bool) -> object:
            read.append((folder, trust_remote_code))
            return original(folder, trust_remote_code)

        args.load_config = load_config

    with pytest.raises(CheckpointError, match="brings code"):
        bench.ours("e3", draft, before=spy)
    assert (str(draft), True) not in read
    bench.stock("e3", draft, before=spy)
    assert (str(draft), True) in read


@pytest.mark.parametrize("era", ERAS)
def test_queries_without_low_rank(bench: Bench, era: str) -> None:
    draft = bench.make("lite", "draft", *v.FRIENDLY, v.without_q_lora)
    with pytest.raises(UnsupportedError, match="q_lora_rank is null"):
        bench.ours(era, draft)
    with pytest.raises(AssertionError, match="copy_weight"):
        bench.stock(era, draft)


def test_trees(bench: Bench) -> None:
    draft = bench.make("friendly", "draft", *v.FRIENDLY)
    tree = {"use_dynamic_tree": True}
    with pytest.raises(UnsupportedError, match="use_dynamic_tree") as caught:
        bench.ours("e3", draft, speculative=tree)
    assert caught.value.check == "V26"
    with pytest.raises(RuntimeError, match="draft trees"):
        bench.stock("e3", draft, speculative=tree)


@pytest.mark.parametrize("era", OLDER)
def test_config_of_kimi(bench: Bench, era: str) -> None:
    draft = bench.make("kimi_k2", "draft", v.host_names, v.plain_norms)
    with pytest.raises(ValueError, match="model type 'kimi_k2'"):
        bench.stock(era, draft)
    bench.ours(era, draft)


@pytest.mark.parametrize("era", OLDER)
def test_more_layers_than_cache(bench: Bench, era: str) -> None:
    """Older versions reserve cache for max_draft_len layers of the draft, not for those it has."""
    draft = bench.make("two layers", "draft", v.two_layers)
    bench.ours(era, draft)
    short = {"max_draft_len": 1}
    with pytest.raises(UnsupportedError, match="max_draft_len to 2"):
        bench.ours(era, draft, speculative=short)

    def let_pass() -> None:
        from tensorrt_llm_ext.trtllm import capture

        capture._refuse_impossible = lambda *_: None

    with pytest.raises(IndexError, match="layer 9 has no cache"):
        bench.ours(era, draft, speculative=short, before=let_pass)


@pytest.mark.parametrize("era", ["e1", "e3"])
def test_draft_as_wide_as_the_captured_states(bench: Bench, era: str) -> None:
    """Upstream tells combined states by their width, and skips fc; another width has own ends."""
    draft = bench.make("wide", "draft", v.wide, *v.FRIENDLY)
    friendly = embedded(bench.make("friendly", "draft", *v.FRIENDLY), COUNT, LONG)
    served = bench.ours(era, draft)
    assert served.acceptance == friendly.acceptance
    assert bench.stock(era, draft).acceptance[1] < served.acceptance[1]
