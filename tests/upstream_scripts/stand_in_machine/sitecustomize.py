"""Python runs this first when its folder is on PYTHONPATH. It gives scripts what a machine without a network and a GPU lacks: datasets,
the picture that they fetch, counters of a GPU's memory. Scripts and packages stay as they are."""

import importlib.abc
import importlib.util
import os
import re
import sys

ROWS = 16


class _After(importlib.abc.MetaPathFinder):
    """Calls a function with a module after its first import."""

    def __init__(self, functions):
        self._functions = functions

    def find_spec(self, name, path=None, target=None):
        change = self._functions.pop(name, None)
        spec = change and importlib.util.find_spec(name)
        if not spec:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


class _Torchvision(importlib.abc.MetaPathFinder):
    """Torchvision's wheels are built for CUDA. Processors need its Python part only: its operators are declared, not defined."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms", "deform_conv2d", "_deform_conv2d_backward",
                             *(f"{sign}{kind}{end}" for kind in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
                               for sign, end in (("", ""), ("_", "_backward")))):
                self.library.define(operator + "(Tensor input) -> Tensor")
            sys.meta_path.append(self)
        return None


def _picture(seed):
    import numpy
    from PIL import Image

    blocks = numpy.random.default_rng(seed).integers(0, 256, size=(4, 4, 3), dtype=numpy.uint8)
    return Image.fromarray(blocks).resize((64, 64))


def _row(name, number):
    words = " ".join(f"word{number * 7 + place}" for place in range(10 + number % 5))
    talk = [("user", f"What is {words}?"), ("assistant", f"It is {words}.")]
    if "flickr" in name:
        return {"image": _picture(number), "caption": [f"A picture of {words}", words]}
    if "speech" in name or "librispeech" in name:
        import numpy

        sound = numpy.sin(numpy.arange(16000) * (0.01 + number / 1000)).astype("float32")
        return {"audio": {"array": sound, "sampling_rate": 16000}, "text": words}
    if "perfectblend" in name:
        return {"conversations": [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in talk]}
    if "starcoder" in name or "Magpie" in name:
        return {"instruction": talk[0][1], "response": talk[1][1], "output": talk[1][1]}
    if "pile" in name or "wikitext" in name:
        return {"text": f"{talk[0][1]} {talk[1][1]} " * 40}
    return {"prompt": talk[0][1], "messages": [{"role": role, "content": text} for role, text in talk]}


def _with_small_datasets(datasets):
    def load_dataset(path, name=None, split=None, **options):
        number = re.match(r"\w+\[(\d+)?:(\d+)?\]", split or "")
        first, last = (int(bound or default) for bound, default in zip(number.groups(), (0, ROWS))) if number else (0, ROWS)
        chosen = range(first, min(last, first + ROWS))
        return datasets.Dataset.from_list([_row(path, row) for row in chosen])

    select = datasets.Dataset.select

    def select_existing(self, indices, *arguments, **options):
        return select(self, [index for index in indices if index < len(self)], *arguments, **options)

    datasets.load_dataset, datasets.Dataset.select = load_dataset, select_existing


def _with_a_picture(requests):
    class Answer:
        def __init__(self):
            import io

            self.raw = io.BytesIO()
            _picture(0).save(self.raw, "JPEG")
            self.raw.seek(0)
            self.content, self.status_code = self.raw.getvalue(), 200

        def raise_for_status(self):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    requests.get = lambda *arguments, **options: Answer()


def _without_a_gpu(torch):
    """Counters of a GPU's memory count nothing, and "cuda" is the CPU."""
    accelerator = torch.accelerator
    accelerator.reset_peak_memory_stats = lambda *_: None
    accelerator.max_memory_allocated = lambda *_: 0
    accelerator.get_memory_info = lambda *_: (1 << 34, 1 << 34)
    to = torch.Tensor.to

    def moved(self, *arguments, **options):
        if _is_cuda(options.get("device")):
            options["device"] = "cpu"
        return to(self, *("cpu" if _is_cuda(one) else one for one in arguments), **options)

    torch.Tensor.to = moved


def _is_cuda(device):
    return isinstance(device, str) and device.startswith("cuda")


def _generating_on_cpus(dispatching):
    """Scripts of several ranks name the GPU and its memory."""
    dispatch = dispatching.dispatch_model
    dispatching.dispatch_model = lambda model, device_memory=None, **options: dispatch(model, **options)


def _with_cached_files(listing):
    """Converters list a repository's files on the hub, which is not there; the cache has them."""
    ask = listing.get_checkpoint_files

    def get_checkpoint_files(model, *arguments, **options):
        from huggingface_hub import snapshot_download

        return ask(snapshot_download(model, local_files_only=True) if not os.path.isdir(model) else model, *arguments, **options)

    listing.get_checkpoint_files = get_checkpoint_files


def _on_cpus(utils):
    """compressed-tensors asks torch which GPU a group of processes is for."""

    def init_dist():
        import torch.distributed

        torch.distributed.init_process_group("gloo")

    utils.init_dist = init_dist


sys.meta_path[:0] = [_Torchvision(), _After({"datasets": _with_small_datasets, "requests": _with_a_picture, "torch": _without_a_gpu,
                                            "compressed_tensors.distributed.utils": _on_cpus,
                                            "compressed_tensors.offload.dispatch": _generating_on_cpus,
                                            "compressed_tensors.utils.safetensors_load": _with_cached_files})]
