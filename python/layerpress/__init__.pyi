# Written by scripts/python_stubs.py from the tables of the C++ library.

from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Callable

from .errors import CheckpointError as CheckpointError
from .errors import DamagedWeightsError as DamagedWeightsError
from .errors import DataError as DataError
from .errors import DistributedError as DistributedError
from .errors import Error as Error
from .errors import InternalError as InternalError
from .errors import InterruptedError as InterruptedError
from .errors import IoError as IoError
from .errors import MemoryError as MemoryError
from .errors import RecipeError as RecipeError
from .errors import UsageError as UsageError
from .model_free import model_free_ptq as model_free_ptq
from .reports import Evaluation as Evaluation
from .reports import Inspection as Inspection
from .reports import MixedPrecision as MixedPrecision
from .reports import Plan as Plan
from .reports import Report as Report
from .reports import Sensitivity as Sensitivity
from .reports import Summary as Summary
from .reports import Verification as Verification
from .runs import Picture
from .sessions import active_session as active_session
from .sessions import create_session as create_session
from .sessions import reset_session as reset_session

__version__: str

class Distributed:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def is_first(self) -> bool: ...
    def barrier(self) -> None: ...
    def failure(self) -> str: ...
    def reports_failure(self) -> bool: ...
    def all_gather_text(self, text: str) -> list[str]: ...

def oneshot(
    model: Any,
    *,
    dataset: Any = None,
    recipe: Any = None,
    progress: bool = True,
    batch_size: int = 1,
    clear_sparse_session: bool = False,
    concatenate_data: bool | None = None,
    config_name: None = None,
    data_collator: str = 'truncation',
    dataloader_num_workers: int = 0,
    dataset_config_name: str | None = None,
    dataset_path: str | PathLike[str] | None = None,
    dvc_data_repository: None = None,
    log_dir: None = None,
    min_tokens_per_module: float | None = None,
    model_revision: str = 'main',
    output_dir: str | PathLike[str] | None = None,
    overwrite_cache: bool = False,
    pad_to_max_length: bool = False,
    precision: Any = None,
    preprocessing_func: Callable[[Any], Any] | None = None,
    preprocessing_num_workers: int | None = None,
    processor: Any = None,
    propagate_error: bool = True,
    quantization_aware_calibration: bool = True,
    raw_kwargs: dict[str, Any] | None = None,
    recipe_args: None = None,
    remove_columns: Any = None,
    save_compressed: bool = True,
    sequential_prefetch: bool = False,
    shuffle_calibration_samples: bool | None = None,
    splits: str | list[str] | dict[str, str] | None = None,
    stage: None = None,
    streaming: bool = False,
    tie_word_embeddings: bool = True,
    tokenizer: Any = None,
    tracing_ignore: Any = None,
    trust_remote_code_model: bool | None = None,
    output: str | PathLike[str] | None = None,  # directory for the compressed checkpoint, or FILE.gguf for llama.cpp
    algorithm: str | None = None,  # gptq or rtn (round-to-nearest)
    scheme: str | None = None,  # preset such as W4A16, FP8_DYNAMIC, NVFP4, or nvfp4-fp8; for a GGUF, llama.cpp's such as Q4_K_M
    group_size: int | None = None,  # columns that share a scale (default: the preset's)
    observer: str | None = None,  # minmax, mse, squared_error, hessian, or gptq (default: hessian for gptq, gptq with --quality best; mse for rtn, squared_error with NVFP4 and MX)
    quality: str | None = None,  # fast (minmax observer), balanced, or best (gptq and pruning aim at the original model's outputs: twice the work), or max (after rotations, which untie embeddings, or smoothing); explicit observer or recipe values override it
    from_imatrix: str | None = None,  # importance file by which errors are weighed when a GGUF is rounded without data, as llama-quantize --imatrix does
    target_bits: float | None = None,  # choose a scheme of --schemes for every linear by measurements, with this many stored bits per weight at most
    target_size: str | None = None,  # the same with this size of the whole result at most; sizes as for --memory-budget
    schemes: str | list[str] | None = None,  # with --target-bits or --target-size: schemes to choose from, such as NVFP4,FP8_DYNAMIC,none (left as it is); for a GGUF, types such as Q4_K,Q6_K
    targets: str | list[str] | None = None,  # modules to compress: class names, module names, re:patterns
    ignore: str | list[str] | None = None,  # modules to leave alone, instead of this default; overrides --targets
    dataset_split: str | None = None,  # split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # column that holds the text
    num_calibration_samples: int | None = None,  # how many samples to use
    max_seq_length: int | None = None,  # longest sample in tokens; longer ones are cut
    shuffle: bool | None = None,  # take samples in seeded random order
    seed: int | None = None,  # seed of --shuffle
    concatenate: bool | None = None,  # join samples and cut them into pieces of --max-seq-length
    use_loss_mask: bool | None = None,  # calibrate only on the assistant's tokens, as the chat template or a column loss_mask marks them
    moe_calibrate_all_experts: bool | None = None,  # calibrate every expert on all tokens, not only on those routed to it (default: yes)
    min_tokens_per_expert: int | None = None,  # least tokens for each expert with --no-moe-calibrate-all-experts (0, the default: 4 x the group size, at least 256)
    pipeline: str | None = None,  # sequential, two_pass, basic or datafree (default: sequential when data is needed)
    sequential_targets: str | list[str] | None = None,  # modules to cut the model at (default: its decoder layers)
    sequential_targets_per_subgraph: int | None = None,  # how many of them are loaded together
    batch_tokens: int | None = None,  # tokens packed into one batch (default: chosen from the model's size)
    memory_budget: str | None = None,  # memory the run may take on this machine: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9 (default: what machine, container and ulimit leave)
    device_memory_budget: str | None = None,  # the same for the device's memory (default: nine tenths of what is free)
    sequential_offload_device: str | None = None,  # where activations are kept between layers: cpu, disk, none (the computing device), or auto (the GPU if all fit, else cpu within the budget, then disk)
    offload_dir: str | PathLike[str] | None = None,  # folder for activations on disk (default: beside the output)
    device: str | None = None,  # cpu, cuda, cuda:1 (default: cuda where there is one)
    dtype: str | None = None,  # bf16, fp16 or fp32 to compute in (default: the checkpoint's)
    threads: int | None = None,  # CPU threads (default: one per usable core, or OMP_NUM_THREADS; divided by the ranks of this node)
    max_shard_size: str | None = None,  # largest weight file; a GGUF is divided only if this is given; sizes as for --memory-budget
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
    push: str | None = None,  # ORG/NAME: upload the result to this repository of the hub, private if it is new
    push_public: bool | None = None,  # with --push: make a new repository public
    overwrite: bool | None = None,  # replace the output directory if it is not empty; start over if it is unfinished, unless --resume is there
    resume: bool | None = None,  # continue an interrupted run; start from the beginning if there is none
    timeout: int | None = None,  # seconds without a sign of life after which a rank of a distributed run counts as lost
    summary: str | PathLike[str] | None = None,  # write a JSON summary to this file
    report: str | PathLike[str] | None = None,  # draw time, memory and errors on a page: an .html file, or none (default: beside the summary's file)
    imatrix: str | None = None,  # write the calibration data's importance file, as llama-imatrix does, for any run with data, of models that GGUF has names for
) -> Any: ...
def plan(
    model: Any,
    *,
    dataset: Any = None,
    recipe: Any = None,
    progress: bool = False,
    batch_size: int = 1,
    clear_sparse_session: bool = False,
    concatenate_data: bool | None = None,
    config_name: None = None,
    data_collator: str = 'truncation',
    dataloader_num_workers: int = 0,
    dataset_config_name: str | None = None,
    dataset_path: str | PathLike[str] | None = None,
    dvc_data_repository: None = None,
    log_dir: None = None,
    min_tokens_per_module: float | None = None,
    model_revision: str = 'main',
    output_dir: str | PathLike[str] | None = None,
    overwrite_cache: bool = False,
    pad_to_max_length: bool = False,
    precision: Any = None,
    preprocessing_func: Callable[[Any], Any] | None = None,
    preprocessing_num_workers: int | None = None,
    processor: Any = None,
    propagate_error: bool = True,
    quantization_aware_calibration: bool = True,
    raw_kwargs: dict[str, Any] | None = None,
    recipe_args: None = None,
    remove_columns: Any = None,
    save_compressed: bool = True,
    sequential_prefetch: bool = False,
    shuffle_calibration_samples: bool | None = None,
    splits: str | list[str] | dict[str, str] | None = None,
    stage: None = None,
    streaming: bool = False,
    tie_word_embeddings: bool = True,
    tokenizer: Any = None,
    tracing_ignore: Any = None,
    trust_remote_code_model: bool | None = None,
    output: str | PathLike[str] | None = None,  # directory for the compressed checkpoint, or FILE.gguf for llama.cpp
    algorithm: str | None = None,  # gptq or rtn (round-to-nearest)
    scheme: str | None = None,  # preset such as W4A16, FP8_DYNAMIC, NVFP4, or nvfp4-fp8; for a GGUF, llama.cpp's such as Q4_K_M
    group_size: int | None = None,  # columns that share a scale (default: the preset's)
    observer: str | None = None,  # minmax, mse, squared_error, hessian, or gptq (default: hessian for gptq, gptq with --quality best; mse for rtn, squared_error with NVFP4 and MX)
    quality: str | None = None,  # fast (minmax observer), balanced, or best (gptq and pruning aim at the original model's outputs: twice the work), or max (after rotations, which untie embeddings, or smoothing); explicit observer or recipe values override it
    from_imatrix: str | None = None,  # importance file by which errors are weighed when a GGUF is rounded without data, as llama-quantize --imatrix does
    target_bits: float | None = None,  # choose a scheme of --schemes for every linear by measurements, with this many stored bits per weight at most
    target_size: str | None = None,  # the same with this size of the whole result at most; sizes as for --memory-budget
    schemes: str | list[str] | None = None,  # with --target-bits or --target-size: schemes to choose from, such as NVFP4,FP8_DYNAMIC,none (left as it is); for a GGUF, types such as Q4_K,Q6_K
    targets: str | list[str] | None = None,  # modules to compress: class names, module names, re:patterns
    ignore: str | list[str] | None = None,  # modules to leave alone, instead of this default; overrides --targets
    dataset_split: str | None = None,  # split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # column that holds the text
    num_calibration_samples: int | None = None,  # how many samples to use
    max_seq_length: int | None = None,  # longest sample in tokens; longer ones are cut
    shuffle: bool | None = None,  # take samples in seeded random order
    seed: int | None = None,  # seed of --shuffle
    concatenate: bool | None = None,  # join samples and cut them into pieces of --max-seq-length
    use_loss_mask: bool | None = None,  # calibrate only on the assistant's tokens, as the chat template or a column loss_mask marks them
    moe_calibrate_all_experts: bool | None = None,  # calibrate every expert on all tokens, not only on those routed to it (default: yes)
    min_tokens_per_expert: int | None = None,  # least tokens for each expert with --no-moe-calibrate-all-experts (0, the default: 4 x the group size, at least 256)
    pipeline: str | None = None,  # sequential, two_pass, basic or datafree (default: sequential when data is needed)
    sequential_targets: str | list[str] | None = None,  # modules to cut the model at (default: its decoder layers)
    sequential_targets_per_subgraph: int | None = None,  # how many of them are loaded together
    batch_tokens: int | None = None,  # tokens packed into one batch (default: chosen from the model's size)
    memory_budget: str | None = None,  # memory the run may take on this machine: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9 (default: what machine, container and ulimit leave)
    device_memory_budget: str | None = None,  # the same for the device's memory (default: nine tenths of what is free)
    sequential_offload_device: str | None = None,  # where activations are kept between layers: cpu, disk, none (the computing device), or auto (the GPU if all fit, else cpu within the budget, then disk)
    offload_dir: str | PathLike[str] | None = None,  # folder for activations on disk (default: beside the output)
    device: str | None = None,  # cpu, cuda, cuda:1 (default: cuda where there is one)
    dtype: str | None = None,  # bf16, fp16 or fp32 to compute in (default: the checkpoint's)
    threads: int | None = None,  # CPU threads (default: one per usable core, or OMP_NUM_THREADS; divided by the ranks of this node)
    max_shard_size: str | None = None,  # largest weight file; a GGUF is divided only if this is given; sizes as for --memory-budget
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
    push: str | None = None,  # ORG/NAME: upload the result to this repository of the hub, private if it is new
    push_public: bool | None = None,  # with --push: make a new repository public
    overwrite: bool | None = None,  # replace the output directory if it is not empty; start over if it is unfinished, unless --resume is there
    resume: bool | None = None,  # continue an interrupted run; start from the beginning if there is none
    timeout: int | None = None,  # seconds without a sign of life after which a rank of a distributed run counts as lost
    summary: str | PathLike[str] | None = None,  # write a JSON summary to this file
    report: str | PathLike[str] | None = None,  # draw time, memory and errors on a page: an .html file, or none (default: beside the summary's file)
    imatrix: str | None = None,  # write the calibration data's importance file, as llama-imatrix does, for any run with data, of models that GGUF has names for
) -> Plan: ...
def mixed_precision(
    model: Any,
    *,
    dataset: Any = None,
    progress: bool = False,
    batch_size: int = 1,
    clear_sparse_session: bool = False,
    concatenate_data: bool | None = None,
    config_name: None = None,
    data_collator: str = 'truncation',
    dataloader_num_workers: int = 0,
    dataset_config_name: str | None = None,
    dataset_path: str | PathLike[str] | None = None,
    dvc_data_repository: None = None,
    log_dir: None = None,
    min_tokens_per_module: float | None = None,
    model_revision: str = 'main',
    output_dir: str | PathLike[str] | None = None,
    overwrite_cache: bool = False,
    pad_to_max_length: bool = False,
    precision: Any = None,
    preprocessing_func: Callable[[Any], Any] | None = None,
    preprocessing_num_workers: int | None = None,
    processor: Any = None,
    propagate_error: bool = True,
    quantization_aware_calibration: bool = True,
    raw_kwargs: dict[str, Any] | None = None,
    recipe_args: None = None,
    remove_columns: Any = None,
    save_compressed: bool = True,
    sequential_prefetch: bool = False,
    shuffle_calibration_samples: bool | None = None,
    splits: str | list[str] | dict[str, str] | None = None,
    stage: None = None,
    streaming: bool = False,
    tie_word_embeddings: bool = True,
    tokenizer: Any = None,
    tracing_ignore: Any = None,
    trust_remote_code_model: bool | None = None,
    output: str | PathLike[str] | None = None,  # directory for the compressed checkpoint, or FILE.gguf for llama.cpp
    algorithm: str | None = None,  # gptq or rtn (round-to-nearest)
    scheme: str | None = None,  # preset such as W4A16, FP8_DYNAMIC, NVFP4, or nvfp4-fp8; for a GGUF, llama.cpp's such as Q4_K_M
    group_size: int | None = None,  # columns that share a scale (default: the preset's)
    observer: str | None = None,  # minmax, mse, squared_error, hessian, or gptq (default: hessian for gptq, gptq with --quality best; mse for rtn, squared_error with NVFP4 and MX)
    quality: str | None = None,  # fast (minmax observer), balanced, or best (gptq and pruning aim at the original model's outputs: twice the work), or max (after rotations, which untie embeddings, or smoothing); explicit observer or recipe values override it
    from_imatrix: str | None = None,  # importance file by which errors are weighed when a GGUF is rounded without data, as llama-quantize --imatrix does
    target_bits: float | None = None,  # choose a scheme of --schemes for every linear by measurements, with this many stored bits per weight at most
    target_size: str | None = None,  # the same with this size of the whole result at most; sizes as for --memory-budget
    schemes: str | list[str] | None = None,  # with --target-bits or --target-size: schemes to choose from, such as NVFP4,FP8_DYNAMIC,none (left as it is); for a GGUF, types such as Q4_K,Q6_K
    targets: str | list[str] | None = None,  # modules to compress: class names, module names, re:patterns
    ignore: str | list[str] | None = None,  # modules to leave alone, instead of this default; overrides --targets
    dataset_split: str | None = None,  # split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # column that holds the text
    num_calibration_samples: int | None = None,  # how many samples to use
    max_seq_length: int | None = None,  # longest sample in tokens; longer ones are cut
    shuffle: bool | None = None,  # take samples in seeded random order
    seed: int | None = None,  # seed of --shuffle
    concatenate: bool | None = None,  # join samples and cut them into pieces of --max-seq-length
    use_loss_mask: bool | None = None,  # calibrate only on the assistant's tokens, as the chat template or a column loss_mask marks them
    moe_calibrate_all_experts: bool | None = None,  # calibrate every expert on all tokens, not only on those routed to it (default: yes)
    min_tokens_per_expert: int | None = None,  # least tokens for each expert with --no-moe-calibrate-all-experts (0, the default: 4 x the group size, at least 256)
    pipeline: str | None = None,  # sequential, two_pass, basic or datafree (default: sequential when data is needed)
    sequential_targets: str | list[str] | None = None,  # modules to cut the model at (default: its decoder layers)
    sequential_targets_per_subgraph: int | None = None,  # how many of them are loaded together
    batch_tokens: int | None = None,  # tokens packed into one batch (default: chosen from the model's size)
    memory_budget: str | None = None,  # memory the run may take on this machine: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9 (default: what machine, container and ulimit leave)
    device_memory_budget: str | None = None,  # the same for the device's memory (default: nine tenths of what is free)
    sequential_offload_device: str | None = None,  # where activations are kept between layers: cpu, disk, none (the computing device), or auto (the GPU if all fit, else cpu within the budget, then disk)
    offload_dir: str | PathLike[str] | None = None,  # folder for activations on disk (default: beside the output)
    device: str | None = None,  # cpu, cuda, cuda:1 (default: cuda where there is one)
    dtype: str | None = None,  # bf16, fp16 or fp32 to compute in (default: the checkpoint's)
    threads: int | None = None,  # CPU threads (default: one per usable core, or OMP_NUM_THREADS; divided by the ranks of this node)
    max_shard_size: str | None = None,  # largest weight file; a GGUF is divided only if this is given; sizes as for --memory-budget
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
    push: str | None = None,  # ORG/NAME: upload the result to this repository of the hub, private if it is new
    push_public: bool | None = None,  # with --push: make a new repository public
    overwrite: bool | None = None,  # replace the output directory if it is not empty; start over if it is unfinished, unless --resume is there
    resume: bool | None = None,  # continue an interrupted run; start from the beginning if there is none
    timeout: int | None = None,  # seconds without a sign of life after which a rank of a distributed run counts as lost
    summary: str | PathLike[str] | None = None,  # write a JSON summary to this file
    report: str | PathLike[str] | None = None,  # draw time, memory and errors on a page: an .html file, or none (default: beside the summary's file)
    imatrix: str | None = None,  # write the calibration data's importance file, as llama-imatrix does, for any run with data, of models that GGUF has names for
) -> MixedPrecision: ...
def evaluate(
    model: str | PathLike[str],
    dataset: Any = None,
    *,
    progress: bool = False,
    reference: str | None = None,  # model to compare with, usually the uncompressed one
    tasks: str | list[str] | None = None,  # tasks of lm-evaluation-harness to run, such as gsm8k; with or without --dataset
    task_folder: str | PathLike[str] | None = None,  # folder with further tasks (YAML)
    engine: str | None = None,  # engine that runs the tasks: transformers or vllm
    limit: int | None = None,  # documents of each task (default: 0, which is all)
    dataset_split: str | None = None,  # split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # column that holds the text
    num_samples: int | None = None,  # how many samples to use
    max_seq_length: int | None = None,  # longest sample in tokens; longer ones are cut
    batch_tokens: int | None = None,  # tokens packed into one batch (default: chosen from the model's size)
    quantize_activations: bool | None = None,  # round the inputs of linears by the checkpoint's scheme, as an engine that serves it does
    device: str | None = None,  # cpu, cuda, cuda:1 (default: cuda where there is one)
    dtype: str | None = None,  # bf16, fp16 or fp32 to compute in (default: the checkpoint's)
    threads: int | None = None,  # CPU threads (default: one per usable core, or OMP_NUM_THREADS)
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
    report: str | PathLike[str] | None = None,  # add the figures to a page that oneshot --report has drawn
    card: bool | None = None,  # write the figures into the model card (README.md) of MODEL, which oneshot wrote
) -> Evaluation: ...
def inspect(
    model: str | PathLike[str],
    *,
    dataset: Any = None,
    progress: bool = False,
    graph: bool | None = None,  # print the traced graph, node by node, instead
    svg: str | PathLike[str] | None = None,  # draw the graph into this file instead; needs Graphviz
    dot: str | PathLike[str] | None = None,  # write the graph in Graphviz's language into this file instead
    full: bool | None = None,  # with --svg or --dot: every layer and every expert, not one of several identical ones
    plan: bool | None = None,  # show memory, disk and time of a one-shot run instead
    sensitivity: bool | None = None,  # measure the output error of each linear in --schemes on --dataset instead
    schemes: str | list[str] | None = None,  # with --sensitivity: presets to compare, such as NVFP4,FP8_DYNAMIC,W4A16
    recipe: str | None = None,  # with --plan: LLM Compressor recipe (YAML or JSON) instead of --algorithm, --scheme, ...
    algorithm: str | None = None,  # with --plan: gptq or rtn (round-to-nearest)
    scheme: str | None = None,  # with --plan: preset such as W4A16, FP8_DYNAMIC, NVFP4, or nvfp4-fp8; for a GGUF, llama.cpp's such as Q4_K_M
    group_size: int | None = None,  # with --plan or --sensitivity: columns that share a scale (default: the preset's)
    observer: str | None = None,  # with --plan: minmax, mse, squared_error, hessian, or gptq (default: hessian for gptq, gptq with --quality best; mse for rtn, squared_error with NVFP4 and MX)
    quality: str | None = None,  # with --plan: fast (minmax observer), balanced, or best (gptq and pruning aim at the original model's outputs: twice the work), or max (after rotations, which untie embeddings, or smoothing); explicit observer or recipe values override it
    targets: str | list[str] | None = None,  # with --plan or --sensitivity: modules to compress: class names, module names, re:patterns
    ignore: str | list[str] | None = None,  # with --plan or --sensitivity: modules to leave alone, instead of this default; overrides --targets
    dataset_split: str | None = None,  # with --plan or --sensitivity: split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # with --plan or --sensitivity: column that holds the text
    num_calibration_samples: int | None = None,  # with --plan or --sensitivity: how many samples to use
    max_seq_length: int | None = None,  # with --plan or --sensitivity: longest sample in tokens; longer ones are cut
    shuffle: bool | None = None,  # with --plan or --sensitivity: take samples in seeded random order
    seed: int | None = None,  # with --plan or --sensitivity: seed of --shuffle
    concatenate: bool | None = None,  # with --plan or --sensitivity: join samples and cut them into pieces of --max-seq-length
    use_loss_mask: bool | None = None,  # with --plan or --sensitivity: calibrate only on the assistant's tokens, as the chat template or a column loss_mask marks them
    moe_calibrate_all_experts: bool | None = None,  # calibrate every expert on all tokens, not only on those routed to it (default: yes)
    min_tokens_per_expert: int | None = None,  # with --plan or --sensitivity: least tokens for each expert with --no-moe-calibrate-all-experts (0, the default: 4 x the group size, at least 256)
    pipeline: str | None = None,  # with --plan or --sensitivity: sequential, two_pass, basic or datafree (default: sequential when data is needed)
    sequential_targets: str | list[str] | None = None,  # modules to cut the model at (default: its decoder layers)
    sequential_targets_per_subgraph: int | None = None,  # how many of them are loaded together
    batch_tokens: int | None = None,  # with --plan or --sensitivity: tokens packed into one batch (default: chosen from the model's size)
    memory_budget: str | None = None,  # with --plan or --sensitivity: memory the run may take on this machine: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9 (default: what machine, container and ulimit leave)
    device_memory_budget: str | None = None,  # with --plan or --sensitivity: the same for the device's memory (default: nine tenths of what is free)
    sequential_offload_device: str | None = None,  # with --plan or --sensitivity: where activations are kept between layers: cpu, disk, none (the computing device), or auto (the GPU if all fit, else cpu within the budget, then disk)
    offload_dir: str | PathLike[str] | None = None,  # with --sensitivity: folder for activations on disk (default: beside the output)
    device: str | None = None,  # with --plan or --sensitivity: cpu, cuda, cuda:1 (default: cuda where there is one)
    dtype: str | None = None,  # bf16, fp16 or fp32 to compute in (default: the checkpoint's)
    threads: int | None = None,  # with --plan or --sensitivity: CPU threads (default: one per usable core, or OMP_NUM_THREADS; divided by the ranks of this node)
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
    timeout: int | None = None,  # with --sensitivity: seconds without a sign of life after which a rank of a distributed run counts as lost
    summary: str | PathLike[str] | None = None,  # with --sensitivity: write a JSON summary to this file
    imatrix: str | None = None,  # with --plan: of a run that is to write the calibration data's importance file, as llama-imatrix does, for any run with data, of models that GGUF has names for
) -> Report: ...
def picture(
    model: str | PathLike[str],
    **arguments: Any,
) -> Picture: ...
def prepare(
    model: str | PathLike[str],
    dataset: Any,
    output: str | PathLike[str],
    *,
    progress: bool = False,
    dataset_split: str | None = None,  # split of a datasets id; train[a:b] takes a slice, of files too
    text_column: str | None = None,  # column that holds the text
    num_calibration_samples: int | None = None,  # how many samples to use
    max_seq_length: int | None = None,  # longest sample in tokens; longer ones are cut
    shuffle: bool | None = None,  # take samples in seeded random order
    seed: int | None = None,  # seed of --shuffle and --generate
    concatenate: bool | None = None,  # join samples and cut them into pieces of --max-seq-length
    use_loss_mask: bool | None = None,  # store which tokens are the assistant's, as the chat template or a column loss_mask marks them
    generate: int | None = None,  # add this many samples that the model itself writes, by continuing parts of the others to the length of the longest; needs transformers, and memory for the whole model
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
) -> Report: ...
def verify(
    model: str | PathLike[str],
    source: str | PathLike[str] = '',
    *,
    progress: bool = False,
    threads: int | None = None,  # CPU threads (default: one per usable core, or OMP_NUM_THREADS)
    model_graph: str | None = None,  # builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' model) or auto: builtin where there is one
    trust_remote_code: bool | None = None,  # let a model's own Python code in its folder run when its graph is exported
    download: bool | None = None,  # fetch what the local Hugging Face cache lacks of a model that is named by its id
) -> Verification: ...
def dispatch_for_generation(model: Any, *arguments: Any, **options: Any) -> Any: ...
def init_dist(timeout: int = 600) -> Distributed: ...
def get_rank_partition(split: str, num_samples: int) -> str: ...
def load_context(model_class: Any = None) -> AbstractContextManager[None]: ...
def load_offloaded_model(model_class: Any = None) -> AbstractContextManager[None]: ...
