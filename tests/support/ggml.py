"""ggml's own rounding, from the library that llama-cpp-python brings (scripts/setup --llama)."""

import ctypes

import numpy as np

from support import program

PATHS = sorted((program.REPOSITORY / ".venv-llama").glob("lib/python*/site-packages/llama_cpp/lib/libggml-base.so"))
IDS = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
       "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39, "NVFP4": 40}


def rounded(name, weight, importance):
    """The bytes that ggml_quantize_chunk, and therefore llama-quantize, makes of a weight, fp32 [rows, columns]."""
    library = ctypes.CDLL(str(PATHS[0]))
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                                            ctypes.c_void_p]
    rows, columns = weight.shape
    kind = IDS[name]
    library.ggml_quantize_init(kind)
    result = np.zeros(rows * library.ggml_row_size(kind, columns), dtype=np.uint8)
    pointer = None if importance is None else importance.ctypes.data
    size = library.ggml_quantize_chunk(kind, weight.ctypes.data, result.ctypes.data, 0, rows, columns, pointer)
    assert size == result.size
    return result.tobytes()
