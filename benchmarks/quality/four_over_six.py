"""Four over six: a block of NVFP4 weights gets the scale that stores its greatest weight as 6, or the one that stores it as 4,
whichever has the smaller squared error. The global scale leaves room for the latter. A textbook form, for comparisons."""
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BLOCK = 16
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
LARGEST_SCALE, LARGEST_OF_FOUR_OVER_SIX = 448, 256  # one and a half times 256 is still below 448


def codes_of(scaled: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(scaled.abs(), MIDDLES).to(torch.uint8) | ((scaled < 0).to(torch.uint8) << 3)


def rounded(blocks: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and each block's squared error."""
    real = scale.float() / global_scale
    codes = codes_of(torch.where(real > 0, blocks / real, torch.zeros(())))
    made = VALUES[(codes & 7).long()] * torch.where(codes > 7, -1, 1) * real
    return codes, (made - blocks).square().sum(-1, keepdim=True)


def quantize(weight: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes and scales of a weight [rows, columns]."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    six, four = ((largest * global_scale / stored_as).to(torch.float8_e4m3fn) for stored_as in (6, 4))
    (codes_six, error_six), (codes_four, error_four) = (rounded(blocks, scale, global_scale) for scale in (six, four))
    four_is_better = error_four < error_six
    codes = torch.where(four_is_better, codes_four, codes_six).flatten(1)
    scales = torch.where(four_is_better, four.float(), six.float()).squeeze(-1).to(torch.float8_e4m3fn)
    return codes[:, ::2] | (codes[:, 1::2] << 4), scales


def requantize(output: Path, model: Path) -> None:
    """Replaces codes and scales of an NVFP4 checkpoint whose scales are by minimum and maximum."""
    originals = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for file in output.glob("*.safetensors"):
        tensors = load_file(file)
        for module in [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]:
            scale = tensors[f"{module}.weight_global_scale"] * LARGEST_OF_FOUR_OVER_SIX / LARGEST_SCALE
            packed, scales = quantize(originals[f"{module}.weight"], scale)
            tensors |= {f"{module}.weight_packed": packed, f"{module}.weight_scale": scales, f"{module}.weight_global_scale": scale}
        save_file(tensors, file, metadata={"format": "pt"})
