"""Prints the perplexity that vLLM computes, as a line of JSON; runs in vLLM's own environment.

    python vllm_perplexity.py MODEL ROWS.jsonl

ROWS have `input_ids`.
"""

import argparse
import json
import math
import os

# Without TORCH_COMPILE_DISABLE parts of vLLM are compiled, with enforce_eager, too, by a C++ compiler for minutes.
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1",
                  HF_HUB_OFFLINE="1", TORCH_COMPILE_DISABLE="1")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rows")
    options = parser.parse_args()
    from vllm import LLM, SamplingParams

    with open(options.rows, encoding="utf-8") as file:
        samples = [json.loads(line)["input_ids"] for line in file]
    engine = LLM(options.model, max_model_len=max(map(len, samples)) + 1, enforce_eager=True, seed=0, disable_log_stats=True)
    answers = engine.generate([{"prompt_token_ids": sample} for sample in samples],
                              SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False), use_tqdm=False)
    losses = [-found[token].logprob for sample, answer in zip(samples, answers)
              for token, found in zip(sample[1:], answer.prompt_logprobs[1:])]
    print(json.dumps({"perplexity": math.exp(sum(losses) / len(losses)), "tokens": len(losses)}))


if __name__ == "__main__":
    main()
