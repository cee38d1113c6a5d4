"""Lets checkpoints answer a question with transformers, loaded as a user would load them.

    python generate.py QUESTION CHECKPOINT...

Prints a JSON object {checkpoint: answer}. Compressed checkpoints are opened by compressed-tensors through their
config.json; nothing of Layerpress is involved.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

NEW_TOKENS = 40


def answer(folder: str, question: str) -> str:
    """The greedy answer to `question`, cut after NEW_TOKENS tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                           return_tensors="pt", return_dict=True)
    ends = {token for token in (model.config.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")) if token}
    with torch.inference_mode():
        tokens = model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(ends),
                                pad_token_id=min(ends))
    return " ".join(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True).split())


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    question, *folders = sys.argv[1:]
    print(json.dumps({folder: answer(folder, question) for folder in folders}))


if __name__ == "__main__":
    main()
