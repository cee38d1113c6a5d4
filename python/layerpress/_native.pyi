"""The extension module, whose functions take and give JSON. The modules of this package are its only callers."""

from typing import Any

def __getattr__(name: str) -> Any: ...
