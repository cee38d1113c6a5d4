"""Checks that Layerpress calibrates with the same tokens as transformers makes of the text: sample for sample, id for id.

Exits with 1 and says where they part. Both programs then see the same input, and only their work is compared.
"""
import argparse
import json
import sys

from safetensors.numpy import load_file
from transformers import AutoTokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, help="JSON lines with a `text` field")
    parser.add_argument("--prepared", required=True, help="what `layerpress prepare` made of it")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--max-seq-length", type=int, required=True)
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    with open(arguments.text, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines if line.strip()][:arguments.samples]
    prepared = load_file(arguments.prepared)
    offsets = prepared["sample_offsets"].tolist()
    if len(offsets) - 1 != len(texts):
        print(f"error: [compare.tokens] {len(offsets) - 1} samples were prepared from {len(texts)} texts", file=sys.stderr)
        return 1
    for index, text in enumerate(texts):
        expected = tokenizer(text, truncation=True, max_length=arguments.max_seq_length)["input_ids"]
        if prepared["input_ids"][offsets[index]:offsets[index + 1]].tolist() != expected:
            print(f"error: [compare.tokens] sample {index}: the token ids differ from transformers'", file=sys.stderr)
            return 1
    print(f"{len(texts)} samples, {offsets[-1]} tokens: equal to transformers'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
