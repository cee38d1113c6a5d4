"""The names that LLM Compressor has for datasets of the hub, with its way of making texts of their rows."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from .errors import DataError
from .helper import import_helper
from .progress import logger


class Named(NamedTuple):
    id: str
    row: Callable[[dict], dict]
    configuration: Optional[str] = None
    split_suffix: str = ""  # of "train" and "test"
    without_template: Optional[Callable[[dict, str], dict]] = None  # makes a text for tokenizers without a chat template: row, end of turn


def _of_conversations(row: dict) -> dict:
    return {"messages": row["conversations"]}


def _with_system_message(row: dict) -> dict:
    messages = list(row["messages"])
    has_one = bool(messages) and messages[0]["role"] == "system"
    return {"messages": messages if has_one else [{"role": "system", "content": ""}, *messages]}


def _of_turns(row: dict, end: str) -> dict:
    """As LLM Compressor's default template."""
    turns = _with_system_message(row)["messages"]
    return {"text": "".join(f"<|{turn['role']}|>\n{turn['content']}{end}\n" for turn in turns if turn["role"] in ("user", "system", "assistant"))}


def _of_instruction(row: dict) -> dict:
    """The Alpaca prompt."""
    more = row.get("input") or ""
    begin = "Below is an instruction that describes a task" + (", paired with an input that provides further context" if more else "")
    parts = [f"{begin}. Write a response that appropriately completes the request.", f"### Instruction:\n{row['instruction']}"]
    parts += [f"### Input:\n{more}"] if more else []
    return {"text": "\n\n".join([*parts, f"### Response:\n{row.get('output') or ''}"])}


def _of_program(row: dict) -> dict:
    """The Alpaca prompt for programs. LLM Compressor leaves most answers out."""
    return {"text": "Below is an instruction that describes a programming task. Write a program that appropriately completes the request.\n\n"
                    f"### Instruction:\n{row['instruction']}\n\n### Response:\n{row.get('output') or ''}"}


def _of_article(row: dict) -> dict:
    return {"text": f"Article:\n{row['article']}\n\n### Summarization:\n{row['highlights']}\n"}


def _of_question(row: dict) -> dict:
    answer = row.get("answer")
    return {"text": f"Question: {row['question']}\nAnswer:" + (f" {answer}" if answer is not None else "")}


def _as_it_is(row: dict) -> dict:
    return {"text": row["text"]}


def _of_picture(row: dict) -> dict:
    question = [{"type": "image"}, {"type": "text", "text": "What does this image show?"}]
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": " ".join(row["caption"])}],
            "image": row["image"]}


NAMED = {
    "c4": Named("allenai/c4", _as_it_is),
    "cnn_dailymail": Named("cnn_dailymail", _of_article, configuration="3.0.0"),
    "evolcodealpaca": Named("theblackcat102/evol-codealpaca-v1", _of_program),
    "flickr": Named("lmms-lab/flickr30k", _of_picture),
    "flickr30k": Named("lmms-lab/flickr30k", _of_picture),
    "gsm8k": Named("openai/gsm8k", _of_question),
    "open_platypus": Named("garage-bAInd/Open-Platypus", _of_instruction),
    "perfectblend": Named("mlabonne/open-perfectblend", _of_conversations),
    "ultrachat": Named("HuggingFaceH4/ultrachat_200k", _with_system_message, split_suffix="_sft", without_template=_of_turns),
    "ultrachat_200k": Named("HuggingFaceH4/ultrachat_200k", _with_system_message, split_suffix="_sft", without_template=_of_turns),
    "wikitext": Named("Salesforce/wikitext", _as_it_is, configuration="wikitext-2-raw-v1"),
}


def load(name: str, configuration: Optional[str], split: Optional[str], tokenizer: Callable[[], Any]) -> tuple[Any, Callable[[dict], dict]]:
    """The rows of a split, and what makes a text or messages of a row."""
    from datasets import load_dataset

    named = NAMED[name]
    base, bracket, part = (split or "train").partition("[")
    if base in ("train", "test"):
        base += named.split_suffix
    split = base + bracket + part
    try:
        rows = load_dataset(named.id, configuration or named.configuration, split=split)
    except Exception as fault:  # the hub's client, file systems and builders each raise classes of their own
        raise _cannot_be_loaded(f"{name}, which is {named.id} on the hub, split '{split}'", fault) from None
    if named.without_template is None or (its := tokenizer()) is None or getattr(its, "chat_template", None):
        return rows, named.row
    logger.warning("the tokenizer has no chat template; the messages of %s become text as LLM Compressor's default template has them", name)
    end, text_of = getattr(getattr(its, "tokenizer", its), "eos_token", None) or "", named.without_template
    return rows, lambda row: text_of(row, end)


def _cannot_be_loaded(what: str, fault: Exception) -> DataError:
    import_helper()
    from layerpress_frame.faults import one_line, without_tokens

    return DataError(f"[python.dataset] {what}: cannot be loaded ({without_tokens(one_line(fault))}); check the network, HF_ENDPOINT and "
                     "HF_HUB_OFFLINE, or pass a file or the rows")
