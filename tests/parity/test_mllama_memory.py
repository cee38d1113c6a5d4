"""Runs with images beside their plans: memory stays inside what was planned, and inside a budget."""

import pytest
import torch
from support import tiny_mllama
from support.planned_runs import MIB, Measured, plan
from support.selection import nightly_but
from support.tiny_mllama import RATIOS, Sample

SIZES = {"vision": {"hidden_size": 256, "attention_heads": 4, "intermediate_size": 1024, "vision_output_dim": 768,
                    "image_size": 112, "patch_size": 8},
         "text": {"hidden_size": 256, "intermediate_size": 1024}}
OPTIONS = ["--group-size", "32", "--threads", "2"]
USUAL = ["--ignore", "re:.*lm_head", "re:.*multi_modal_projector.*", "re:.*vision_model.*"]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A model whose images fill hundreds of rows each, and samples with up to two of them."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_mllama, "IMAGE_SIZE", SIZES["vision"]["image_size"])
        model = tiny_mllama.save(folder / "model", torch.bfloat16, **SIZES)
        images = [1 + i % len(RATIOS) for i in range(72)]
        samples = [Sample(60, [images[i]] if i % 3 else [images[i], images[i + 1]], seed=i) for i in range(64)]
        return model, tiny_mllama.write_token_file(folder / "tokens.safetensors", samples)


@pytest.mark.parametrize("options", nightly_but([USUAL, [], [*USUAL, "--sequential-targets", "MllamaSelfAttentionDecoderLayer"],
                                                 ["--quality", "best"]], USUAL),
                         ids=["text compressed", "all compressed", "by self-attention layers", "original model beside it"])
def test_plan_and_run(options, case, tmp_path):
    model, tokens = case
    arguments = ["--dataset", tokens, *OPTIONS, *options, "--sequential-offload-device", "cpu"]
    planned, measured = plan(model, tmp_path / "out", *arguments), Measured(model, tmp_path / "out", *arguments)
    said = f"planned {planned['peak_bytes'] / MIB:.0f} MiB, measured {measured.peak_bytes / MIB:.0f} MiB"
    assert measured.peak_bytes <= 1.02 * planned["peak_bytes"] and planned["peak_bytes"] <= 1.25 * measured.peak_bytes, said
    assert measured.plan["peak_bytes"] == pytest.approx(planned["peak_bytes"], rel=0.01)


@pytest.mark.nightly
def test_budget(case, tmp_path):
    """Vision states and what becomes of the images wait on disk."""
    model, tokens = case
    arguments = ["--dataset", tokens, *OPTIONS, *USUAL]
    free = plan(model, tmp_path / "out", *arguments)
    budget = (free["smallest_budget_bytes"] + free["peak_bytes"]) // 2
    assert budget < free["peak_bytes"] - 20 * MIB
    measured = Measured(model, tmp_path / "out", *arguments, "--memory-budget", f"{budget // MIB}MiB")
    assert measured.peak_bytes <= budget
