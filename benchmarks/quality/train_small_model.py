"""Trains a small model on calibration text for some minutes: a second architecture with meaningful weights.

    python train_small_model.py FOLDER --kind dense --text calibration.jsonl --minutes 6

Qwen 3, dense or a mixture of experts, with a byte-pair tokenizer of its own, on the processor's cores.
"""
import argparse
import json
import math
import shutil
import sys
import time
from pathlib import Path

VOCABULARY = 2048
LENGTH = 256
BATCH = 8
PEAK_RATE = 2e-3
WARM_UP = 0.05  # share of the time in which the rate rises; then it falls along a cosine
SHAPES = {
    "dense": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
              "intermediate_size": 768},
    "mixture": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                "intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
}


def train_tokenizer(texts: list[str]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"],
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def new_model(kind: str):
    import torch
    import transformers

    config_class, model_class = {"dense": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
                                 "mixture": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM)}[kind]
    more = {"norm_topk_prob": True} if kind == "mixture" else {}
    torch.manual_seed(0)
    return model_class(config_class(**SHAPES[kind], vocab_size=VOCABULARY, max_position_embeddings=4096,
                                    tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, **more))


def rate(progress: float) -> float:
    if progress < WARM_UP:
        return PEAK_RATE * progress / WARM_UP
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


def train(model, tokens, minutes: float) -> tuple[int, float]:
    """Trains until the time is over; returns the number of steps and the loss of the last ones."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    chooser = torch.Generator().manual_seed(0)
    began, steps, loss_of_late = time.monotonic(), 0, 0.0
    while (progress := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate(progress)
        starts = torch.randint(0, len(tokens) - LENGTH - 1, (BATCH,), generator=chooser).tolist()
        batch = torch.stack([tokens[start:start + LENGTH] for start in starts])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        loss_of_late = loss.item() if steps == 1 else 0.95 * loss_of_late + 0.05 * loss.item()
        if steps % 100 == 0:
            print(f"{progress:4.0%}  step {steps}  loss {loss_of_late:.3f}", file=sys.stderr, flush=True)
    return steps, loss_of_late


def make(folder: Path, kind: str, texts: list[Path], minutes: float) -> Path:
    """Creates `folder` unless it is complete from an earlier run."""
    settings = {"kind": kind, "minutes": minutes, **SHAPES[kind]}
    marker = folder / "made.json"
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8"))["settings"] == settings:
        return folder
    import torch  # not where only --help is asked for
    import transformers

    shutil.rmtree(folder, ignore_errors=True)
    lines = [json.loads(line)["text"] for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    tokenizer = train_tokenizer(lines)
    tokens = torch.tensor([token for encoding in tokenizer.encode_batch(lines) for token in [*encoding.ids, 0]])
    model = new_model(kind)
    steps, loss = train(model, tokens, minutes)
    model.to(torch.bfloat16).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    marker.write_text(json.dumps({"settings": settings, "steps": steps, "loss": loss}), encoding="utf-8")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint to write")
    parser.add_argument("--kind", choices=list(SHAPES), default="dense")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="JSON lines with `text`")
    parser.add_argument("--minutes", type=float, default=6, help="to train (default 6)")
    arguments = parser.parse_args()
    print(make(arguments.folder, arguments.kind, arguments.text, arguments.minutes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
