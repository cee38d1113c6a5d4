"""Scripts that torchrun starts: the ranks of the process, its part of the data, and models that ranks share."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any, Iterator, Optional

from . import _native
from .errors import UsageError
from .progress import Events, in_main_thread

_ranks: Optional[_native.Distributed] = None


def init_dist(timeout: int = 600) -> _native.Distributed:
    """Joins the processes that torchrun, Slurm or mpirun started together; oneshot() then divides its work among them. Without such an
    environment: a single rank. A second call returns the same ranks. Scripts may use torch.distributed as well."""
    global _ranks
    if _ranks is None:
        _ranks = _native.init_dist(timeout, Events(False), in_main_thread())
        if _ranks.size > 1 and "MASTER_ADDR" in os.environ:
            import torch.distributed

            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo", **_meeting(_ranks))
                atexit.register(_leave)
    return _ranks


def _leave() -> None:
    """Threads of a process group that outlive the interpreter abort the process, which would end with an error after its work is done."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _meeting(ranks: Any) -> dict[str, Any]:
    """Where processes of torch.distributed meet: torchrun's store, or, because ours has MASTER_PORT otherwise, one of their own."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return {}
    from torch.distributed import TCPStore

    address = os.environ["MASTER_ADDR"]
    own = TCPStore(address, 0, ranks.size, is_master=True, wait_for_workers=False) if ranks.is_first else None
    port = int(ranks.all_gather_text("" if own is None else str(own.port))[0])
    store = own or TCPStore(address, port, ranks.size, is_master=False, wait_for_workers=False)
    return {"store": store, "rank": ranks.rank, "world_size": ranks.size}


def current_ranks() -> Any:
    """The ranks that init_dist() joined, or those of a process group that the script has made, such as init_dist() of
    compressed-tensors does."""
    distributed = sys.modules.get("torch.distributed")
    if _ranks is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
        if distributed.get_world_size() > 1:
            init_dist()
    return _ranks


def get_rank_partition(split: str, num_samples: int) -> str:
    """This rank's slice of the first samples of a split, such as "train[128:256]"."""
    return _native.rank_partition(init_dist(), split, num_samples)


def get_local_gpu_group_size() -> int:
    """How many GPUs scripts of AutoRound want for each rank. Here a rank computes on one device."""
    return int(os.environ.get("LLMCOMPRESSOR_GPUS_PER_GROUP", "1"))


def init_gpu_group_dist(gpus_per_group: Optional[int] = None) -> tuple[int, int, int]:
    """init_dist() for scripts of AutoRound: rank, number of ranks, and the rank's place on its machine."""
    wanted = get_local_gpu_group_size() if gpus_per_group is None else gpus_per_group
    if wanted != 1:
        raise UsageError(f"[python.init_gpu_group_dist] a rank computes on one GPU, not on {wanted}; start one rank for each GPU, and set "
                         "LLMCOMPRESSOR_GPUS_PER_GROUP=1")
    ranks = init_dist()
    return ranks.rank, ranks.size, int(os.environ.get("LOCAL_RANK", "0"))


def shares_weights(model: Any) -> bool:
    return hasattr(model, "_layerpress_versions")


def source_folder(model: Any) -> str:
    """The folder or id that a model was loaded from inside of load_offloaded_model(). Ranks read it instead of the model in memory, which
    must therefore be unchanged."""
    for name, parameter in model.named_parameters():
        if model._layerpress_versions.get(name) != parameter._version:
            raise UsageError(f"[python.oneshot] {name} was changed after the model was loaded; on several ranks only a model as it "
                             "is stored can be compressed: save it first")
    return str(model.config._name_or_path)


@contextlib.contextmanager
def load_context(model_class: Any = None) -> Iterator[None]:
    """The name that newer scripts have for load_offloaded_model()."""
    with load_offloaded_model(model_class):
        yield


@contextlib.contextmanager
def load_offloaded_model(model_class: Any = None) -> Iterator[None]:
    """Inside, from_pretrained() takes device_map="auto_offload": the model stays on the CPU, where safetensors maps its files, so that
    the ranks of a machine share one copy in the page cache."""
    from transformers import PreTrainedModel

    load = PreTrainedModel.__dict__["from_pretrained"]

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("device_map") in ("auto_offload", "disk"):
            options["device_map"] = "cpu"
            for name in ("max_memory", "offload_folder"):  # mapped files need neither
                options.pop(name, None)
        model = load.__func__(cls, *arguments, **options)
        target = model[0] if isinstance(model, tuple) else model
        target._layerpress_versions = {name: parameter._version for name, parameter in target.named_parameters()}
        return model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = load
