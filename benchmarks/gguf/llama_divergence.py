"""How far llama.cpp's logits of GGUF files are from its logits of another file: the KL divergence of next-token distributions. Its CPU
kernels round activations to 8 bits, which is a part of every figure. Runs in .venv-llama (scripts/setup --llama).

    python llama_divergence.py REFERENCE.gguf TOKENS.json FILE.gguf...     TOKENS: a list of samples, each a list of ids

Prints for each file a line of JSON with the mean, median, 99th percentile and greatest KL over tokens.
"""
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Model:
    """With keys and values in fp32, so that nothing but weights and kernels differs."""

    def __init__(self, file: str, length: int):
        self.model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"error: llama.cpp does not load {file}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
        parameters.type_k = parameters.type_v = 0
        parameters.flash_attn_type = 0
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(length, 0, 1)

    def log_probabilities(self, tokens: list[int]) -> Any:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            self.batch.token[index], self.batch.pos[index] = token, index
            self.batch.n_seq_id[index], self.batch.seq_id[index][0], self.batch.logits[index] = 1, 0, 1
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise SystemExit("error: llama.cpp does not compute a sample")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(tokens), self.vocabulary)).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def main() -> None:
    llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
    samples = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    length = max(map(len, samples))
    reference = Model(sys.argv[1], length)
    for file in sys.argv[3:]:
        found = Model(file, length)
        parts = []
        for sample in samples:
            expected = reference.log_probabilities(sample)
            parts.append((np.exp(expected) * (expected - found.log_probabilities(sample))).sum(-1))
        found.close()
        divergence = np.concatenate(parts)
        print(json.dumps({"mean": divergence.mean(), "median": np.median(divergence), "p99": np.quantile(divergence, 0.99),
                          "max": divergence.max()}), flush=True)


if __name__ == "__main__":
    main()
