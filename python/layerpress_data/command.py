"""The program: reads the request, prepares the samples, writes the token file, prints the summary."""

from __future__ import annotations

import json
import logging
import os
import signal
import traceback
import warnings
from pathlib import Path
from typing import BinaryIO, TextIO

from .errors import DataError, PrepareError, one_line
from .request import Request, parse_request


def main(request_stream: BinaryIO, output: TextIO, diagnostics: TextIO) -> int:
    """Returns the exit code: 0 for success, 2 for a faulty request or data, 1 for other failures.

    On failure exactly one line goes to `diagnostics`.
    """
    _silence_libraries()
    _end_with_parent()
    try:
        summary = prepare(parse_request(request_stream.read()))
    except PrepareError as fault:
        print(f"error: [data.prepare] {one_line(fault, 2000)}", file=diagnostics)
        return fault.exit_code
    except KeyboardInterrupt:
        print("error: [data.prepare] interrupted", file=diagnostics)
        return 1
    except BaseException as fault:  # a panic in a library written in Rust is no Exception
        print(f"error: [data.prepare] {_unforeseen(fault)}", file=diagnostics)
        return 1
    print(json.dumps(summary), file=output, flush=True)
    return 0


def prepare(request: Request) -> dict[str, int]:
    """Executes `request` and returns the summary."""
    from .checkpoint_tokenizer import load_tokenizer
    from .dataset import open_dataset
    from .samples import collect_samples, selected_rows
    from .token_file import write_token_file

    source, split = open_dataset(request)
    tokenizer = load_tokenizer(request.model_directory)
    images = _images(request)
    samples = collect_samples(selected_rows(source, split, request), source, tokenizer, request, images)
    if not samples.tokens and request.rows is None:
        raise DataError(_nothing_left(request, samples.skipped_empty))
    summary = {
        "samples": len(samples.tokens),
        "tokens": write_token_file(
            Path(request.output), samples.tokens, images.spool if images and images.spool.shapes else None
        ),
        "skipped_empty": samples.skipped_empty,
    }
    if request.rows is not None:
        return {**summary, "rows": samples.rows}
    return {**summary, "requested": request.num_samples}


def _images(request: Request):
    """The tools for samples with images; None for a model without images."""
    if not request.image_columns:
        return None
    from .pixel_spool import PixelSpool
    from .samples import Images
    from .vision_processor import VisionProcessor, image_token

    directory = request.model_directory
    spool = PixelSpool(Path(request.output).parent)
    return Images(VisionProcessor(directory), request.dataset_folder, spool, image_token(directory))


def _nothing_left(request: Request, skipped: int) -> str:
    where = f"{request.dataset} (split '{request.split}')"
    if request.concatenate:
        return f"{where}: all rows together give fewer than max_seq_length = {request.max_seq_length} tokens: lower it"
    if skipped:
        return f"{where}: all {skipped} rows are empty: pass a dataset with text"
    return f"{where}: the dataset has no rows: pass another dataset or split"


def _silence_libraries() -> None:
    """Keeps progress bars and advice of libraries off stdout and stderr, which the caller reads."""
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
    os.environ.update(TRANSFORMERS_NO_ADVISORY_WARNINGS="1", TRANSFORMERS_VERBOSITY="critical")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


def _end_with_parent() -> None:
    """Ends the helper when its parent program is killed, because the samples are no longer needed."""
    parent = os.getppid()
    try:
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, Linux
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        raise SystemExit(1)


def _unforeseen(fault: BaseException) -> str:
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{type(fault).__name__} at {place}: {one_line(fault) or 'no message'}: please report this"
