"""scripts/api_reference shows what a header offers, and nothing else of it."""

import importlib.machinery
import importlib.util

import pytest
from support import program

HEADER = """#pragma once

namespace layerpress {

class Hidden;
/// Counts things.
///
///   Counter counter;
///   counter.add(2);
class Counter {
 public:
  /// Adds.
  void add(int more) { count_ += more; }
  int count() const;  ///< the sum

 private:
  int count_ = 0;
};

/// Makes one; `start` may be "{".
Counter make_counter(const std::string& start = "{");
inline Counter make_counter(int start) { return make_counter(std::to_string(start)); }

}  // namespace layerpress
"""


@pytest.fixture(scope="module")
def reference():
    path = str(program.REPOSITORY / "scripts" / "api_reference")
    loader = importlib.machinery.SourceFileLoader("api_reference", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("api_reference", loader))
    loader.exec_module(module)
    return module


def test_declarations(reference):
    found = reference.declarations(HEADER)
    assert [reference.name_of(code) for _, code in found][1:] == ["Counter", "make_counter", "make_counter"]
    comment, code = found[1]
    assert reference.prose(comment) == "Counts things.\n\n```cpp\nCounter counter;\ncounter.add(2);\n```"
    assert reference.public_part(code) == ["class Counter {", " public:", "  /// Adds.", "  void add(int more);",
                                           "  int count() const;  ///< the sum", "};"]


def test_pages_name_all_public_functions(reference):
    cpp, python = reference.cpp_page(), reference.python_page()
    for name in ("oneshot", "plan_oneshot", "evaluate", "inspect", "prepare", "init_dist", "load_offloaded_model"):
        assert f"### {name}\n" in cpp
    assert "private:" not in cpp and "_help" not in cpp
    for name in ("oneshot", "evaluate", "modifiers.GPTQModifier"):
        assert f"### layerpress.{name}\n" in python
