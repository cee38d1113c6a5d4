"""Runs in the environment of llama-cpp-python (scripts/setup --llama); support.llama starts it.

    llama_worker.py ids FILE.gguf        texts on stdin as JSON; the ids of each, without and with special tokens around it
    llama_worker.py logits FILE.gguf     tokens on stdin as JSON; the logits of each
    llama_worker.py quantize JOBS.json   [{"source", "target", "file_type", "importance": {tensor: columns}}, ...]
"""

import ctypes
import json
import sys

import llama_cpp

SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


def ids(vocab, text, around):
    raw = text.encode()
    buffer = (llama_cpp.llama_token * (len(raw) + 16))()
    count = llama_cpp.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), around, True)
    assert count >= 0, text
    return list(buffer[:count])


def print_ids(file):
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(file.encode(), parameters)
    assert model, "llama.cpp does not load the file"
    vocab = llama_cpp.llama_model_get_vocab(model)
    print(json.dumps([[ids(vocab, text, False), ids(vocab, text, True)] for text in json.load(sys.stdin)]))


def print_logits(file):
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    assert model, "llama.cpp does not load the file"
    parameters = llama_cpp.llama_context_default_params()
    parameters.type_k = parameters.type_v = 0  # fp32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    tokens = json.load(sys.stdin)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index], batch.pos[index], batch.n_seq_id[index], batch.logits[index] = token, index, 1, 1
        batch.seq_id[index][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    print(json.dumps([llama_cpp.llama_get_logits_ith(context, index)[:size] for index in range(len(tokens))]))


def quantize(job):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = job["file_type"]
    parameters.nthread = 1
    kind = llama_cpp.llama_cpp.llama_model_imatrix_data
    entries = [kind(name.encode(), (ctypes.c_float * size)(*[1.0] * size), size) for name, size in job["importance"].items()]
    array = (kind * (len(entries) + 1))(*entries)
    if entries:
        parameters.imatrix = array
    code = llama_cpp.llama_model_quantize(job["source"].encode(), job["target"].encode(), ctypes.byref(parameters))
    assert code == 0, job


if __name__ == "__main__":
    llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
    if sys.argv[1] == "ids":
        print_ids(sys.argv[2])
    elif sys.argv[1] == "logits":
        print_logits(sys.argv[2])
    else:
        for each in json.loads(open(sys.argv[2]).read()):
            quantize(each)
