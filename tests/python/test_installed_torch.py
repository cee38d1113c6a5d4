"""What an installed package does to find the parts that were built for its torch."""
import sys
from pathlib import Path

import pytest
from layerpress_start import installed_torch, program

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from wheel_torch import requirement


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A folder of packages with a torch and with parts for two versions of it."""
    package, torch = tmp_path / "layerpress", tmp_path / "torch"
    (package / "bin").mkdir(parents=True)
    torch.mkdir()
    (torch / "__init__.py").touch()
    for version in ("2.13", "2.14"):
        (package / f"_native_torch_{version}.abi3.so").touch()
        (package / "bin" / f"layerpress-torch-{version}").touch()
    monkeypatch.setattr(installed_torch, "PACKAGE", package)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own")
    return tmp_path


def install(folder, version):
    (folder / "torch" / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\ndebug = False\n")


@pytest.mark.parametrize(("version", "minor"), [("2.13.0+cpu", "2.13"), ("2.14.1", "2.14")])
def test_the_parts_of_the_installed_minor_version_are_taken(environment, version, minor):
    install(environment, version)
    assert installed_torch.native_part("_native_torch_{}.abi3.so").name == f"_native_torch_{minor}.abi3.so"
    assert installed_torch.environment() == {}


def test_another_torch_is_refused_in_one_line(environment, monkeypatch):
    install(environment, "2.15.0")
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert str(ended.value) == ("error: [python.torch] torch 2.15 is installed; this package serves 2.13 and 2.14; "
                                "run pip install 'torch==2.14.*'")


def test_the_libraries_of_a_torch_in_another_folder_are_named(environment, monkeypatch):
    install(environment, "2.13.0")
    monkeypatch.setattr(installed_torch, "PACKAGE", environment / "user" / "layerpress")
    assert installed_torch.environment() == {"LD_LIBRARY_PATH": f"{environment / 'torch' / 'lib'}:/own"}


def test_a_wheel_requires_the_versions_that_it_has_parts_for():
    assert requirement(["2.14", "2.13"]) == "torch>=2.13,<2.15"
    assert requirement(["2.9"]) == "torch>=2.9,<2.10"
    with pytest.raises(ValueError, match="not consecutive"):
        requirement(["2.13", "2.15"])
