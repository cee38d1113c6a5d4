// graph.json; constants.safetensors has the constants that it names, as large as it says.
#include <ATen/ATen.h>

#include <map>

#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/graph/text.h"
#include "layerpress/importer/import_graph.h"
#include "layerpress/kernels/program/tensor_program.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

constexpr std::int64_t kMostConstantValues = 1 << 14;

/// Undefined for a description that is none.
at::Tensor constant(const Json& description) {
  if (!description.is_object()) return {};
  const Json shape = description.value("shape", Json()), dtype = description.value("dtype", Json());
  if (!shape.is_array() || !dtype.is_string()) return {};
  std::vector<std::int64_t> sizes;
  std::int64_t values = 1;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostConstantValues))
      return {};
    sizes.push_back(size.get<std::int64_t>());
    values *= sizes.back();
    if (values > kMostConstantValues) return {};
  }
  return sizes.size() > 64 ? at::Tensor() : at::zeros(sizes, kernels::dtype_of_name(dtype.get<std::string>()));
}

void write_constants(const Json& graph) {
  std::map<std::string, at::Tensor> tensors;
  const Json constants = graph.is_object() ? graph.value("constants", Json()) : Json();
  if (constants.is_array())
    for (const Json& description : constants)
      if (at::Tensor value = constant(description); value.defined() && description.value("name", Json()).is_string())
        tensors.emplace(description["name"].get<std::string>(), std::move(value));
  checkpoint::write_safetensors(input_folder() / "constants.safetensors", tensors);
}

}  // namespace

void graph_file(std::string_view input) {
  write_input("graph.json", input);
  if (input.find("\"constants\":[]") == std::string_view::npos) {
    try {
      write_constants(described(input));
    } catch (const std::exception&) {  // names or dtypes that safetensors does not have
    }
  }
  const model::TracedModel traced = importer::import_graph(input_folder());
  require(!graph::to_text(traced.graph).empty(), "a graph without a text");
}

}  // namespace layerpress::fuzz
