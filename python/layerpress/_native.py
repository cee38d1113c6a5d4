"""Becomes the extension module that was built for the torch of this environment. An installed package holds one for each minor version of
torch that it serves; a build folder holds the module itself, `_native.abi3.so`, which Python prefers to this file."""

import importlib.util
import sys

from layerpress_start import installed_torch

installed_torch.make_loadable()
_spec = importlib.util.spec_from_file_location(__name__, installed_torch.native_part("_native_torch_{}.abi3.so"))
_module = importlib.util.module_from_spec(_spec)
sys.modules[__name__] = _module
_spec.loader.exec_module(_module)
