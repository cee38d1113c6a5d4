#include "layerpress/importer/exported/exported_graph.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cctype>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::importer {
namespace {

constexpr const char* kFile = "graph.json";
// The graph of a mixture with two trillion parameters has 7,600 nodes: 15 MB with 1.1 million JSON values.
constexpr std::size_t kMostBytes = std::size_t{256} << 20, kMostJsonValues = 10'000'000;
constexpr std::size_t kMostValues = 1'000'000, kMostName = 1'000, kMostConstantBytes = std::size_t{256} << 20;
constexpr std::int64_t kMostSize = std::int64_t{1} << 40;

template <typename... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw CheckpointError("[importer.read] graph.json: {}; export the graph again",
                        fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Names end in messages, file names and the graph's text.
void check_name(const std::string& name, const char* of) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-'; };
  if (name.size() > kMostName || !std::all_of(name.begin(), name.end(), plain))
    refuse("the name of a {} may contain only letters, digits, '_', '-' and '.'", of);
}

Size read_size(const Json& json) {
  if (json.is_number_integer()) {
    const auto size = json_integer(json);
    if (size < 0 || size > kMostSize) refuse("a size {} is out of range", size);
    return {size, 0, true};
  }
  const auto text = json.get<std::string>();
  const std::size_t star = text.find('*');
  const std::string number = text.substr(0, star == std::string::npos ? 0 : star);
  const bool has_factor =
      !number.empty() && number.size() < 10 &&
      std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  const std::string rest = has_factor ? text.substr(star + 1) : text;
  const std::int64_t factor = has_factor ? std::stoll(number) : 1;
  if (rest == "T") return {factor, 1, true};
  if (rest == "T**2") return {factor, 2, true};
  return {1, 1, false};
}

ValueType read_type(const Json& json) {
  ValueType type;
  if (!json.contains("dtype")) return type;
  type.dtype = json.at("dtype").get<std::string>();
  kernels::dtype_of_name(type.dtype);
  const Json& shape = json.at("shape");
  if (shape.size() > 64) refuse("a value has {} dimensions", shape.size());
  for (const Json& size : shape) type.shape.push_back(read_size(size));
  return type;
}

/// The gate of experts as a program of one input [rows, features].
std::string gate_program(const Json& gate) {
  const auto reference = [&](const Json& argument) {
    return with_replaced(argument, [&](const Json& object) {
      return object.contains("v") && object["v"] == gate.at("inputs").at(0).at("id") ? Json{{"i", 0}} : object;
    });
  };
  if (!gate.at("parameters").empty() || !gate.at("constants").empty() || gate.at("inputs").size() != 1)
    refuse("the gate of experts has parameters of its own");
  const Json& input = gate.at("inputs").at(0);
  Json steps = Json::array();
  for (const Json& node : gate.at("nodes"))
    steps.push_back({node.at("op"), reference(node.at("args")), node.at("out")});
  Json program = {{"inputs", {{{"shape", {-1, input.at("shape").at(1)}}, {"dtype", input.at("dtype")}}}},
                  {"weights", Json::array()},
                  {"constants", 0},
                  {"steps", steps},
                  {"result", reference(Json{{"v", gate.at("output")}})},
                  {"axis", 0}};
  std::string text = program.dump();
  kernels::TensorProgram::compile(text);
  return text;
}

ExpertGate read_gate(const Json& json) {
  ExpertGate gate{gate_program(json), json.at("interleaved").get<bool>()};
  for (const Json& node : json.at("nodes")) {
    gate.alone = gate.alone && !node.contains("mixes");
    const ValueType type = read_type(node);
    if (!type.known()) continue;
    auto bytes = static_cast<std::int64_t>(c10::elementSize(kernels::dtype_of_name(type.dtype)));
    for (const Size& size : type.shape)
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size.factor, 1), &bytes)) refuse("a gate is too large");
    gate.row_bytes = std::min(gate.row_bytes + bytes, kMostSize);
  }
  return gate;
}

class Reader {
 public:
  Reader(const Json& json, const std::filesystem::path& folder) : json_(json), folder_(folder) {}

  ExportedGraph read() {
    if (json_.at("format").get<std::string>() != "layerpress.graph.v1") refuse("the format is not layerpress.graph.v1");
    const auto values = json_integer(json_.at("values"));
    if (values < 1 || values > static_cast<std::int64_t>(kMostValues))
      refuse("{} values are more than {}, or none", values, kMostValues);
    if (json_.at("nodes").size() > kMostValues)
      refuse("{} nodes are more than {}", json_.at("nodes").size(), kMostValues);
    graph_.types.resize(static_cast<std::size_t>(values));
    made_.resize(graph_.types.size(), false);
    read_facts();
    read_modules();
    for (const Json& input : json_.at("inputs")) read_input(input);
    if (graph_.token_ids < 0) refuse("the input 'input_ids' is missing");
    for (const Json& parameter : json_.at("parameters")) read_parameter(parameter);
    read_constants();
    for (const Json& node : json_.at("nodes")) read_node(node);
    graph_.output = json_integer(json_.at("output"));
    if (!is_made(graph_.output)) refuse("the output {} is not computed", graph_.output);
    for (const auto& [name, gate] : json_.at("gates").items()) graph_.gates[name] = read_gate(gate);
    return std::move(graph_);
  }

 private:
  bool is_made(std::int64_t value) const {
    return value >= 0 && value < static_cast<std::int64_t>(made_.size()) && made_[static_cast<std::size_t>(value)];
  }

  void make(std::int64_t value, ValueType type) {
    if (value < 0 || value >= static_cast<std::int64_t>(made_.size())) refuse("value {} is out of range", value);
    const auto place = static_cast<std::size_t>(value);
    if (made_[place]) refuse("value {} is computed twice", value);
    made_[place] = true;
    graph_.types[place] = std::move(type);
  }

  void read_facts() {
    graph_.dtype = json_.at("dtype").get<std::string>();
    kernels::dtype_of_name(graph_.dtype);
    graph_.class_name = json_.at("class").get<std::string>();
    graph_.way = json_.at("way").get<std::string>();
    check_name(graph_.class_name, "class"), check_name(graph_.way, "way");
    graph_.least_tokens = std::max<std::int64_t>(1, json_integer(json_.at("least_tokens")));
    graph_.most_tokens = json_.at("most_tokens").is_null() ? 0 : json_integer(json_.at("most_tokens"));
    graph_.vocab_size = json_integer(json_.at("vocab_size"));
    if (json_has(json_, "rotary_tokens")) graph_.rotary_tokens = json_integer(json_.at("rotary_tokens"));
    graph_.max_position_embeddings = json_integer(json_.at("max_position_embeddings"));
    graph_.tied_head = json_.at("tied_head").get<bool>();
    graph_.own_head = json_.value("own_head", false);
    graph_.layer_classes = json_.at("layer_classes").get<std::vector<std::string>>();
    graph_.linears = json_.at("linears").get<std::vector<std::string>>();
    graph_.head = json_.value("head", "");
    check_name(graph_.head, "module");
    for (const std::string& name : graph_.layer_classes) check_name(name, "class");
    for (const std::string& name : graph_.linears) check_name(name, "module");
    if (graph_.vocab_size <= 0 || graph_.most_tokens < 0 || graph_.rotary_tokens < 0) refuse("sizes are out of range");
  }

  void read_modules() {
    for (const Json& module : json_.at("modules")) {
      graph_.modules.emplace_back(module.at(0).get<std::string>(), module.at(1).get<std::string>());
      check_name(graph_.modules.back().first, "module"), check_name(graph_.modules.back().second, "class");
    }
  }

  void read_input(const Json& json) {
    const auto name = json.at("name").get<std::string>();
    const auto id = json_integer(json.at("id"));
    const ValueType type = read_type(json);
    const std::size_t rank = type.shape.size();
    bool fits = rank >= 2 && type.shape[rank - 2] == Size{1, 0, true} && type.shape[rank - 1].is_tokens();
    if (rank == 3 && name == "position_ids") {
      graph_.position_axes = type.shape[0].factor;
      fits = fits && type.shape[0].power == 0 && graph_.position_axes > 0 && graph_.position_axes <= 16;
    } else {
      fits = fits && rank == 2;
    }
    if ((name != "input_ids" && name != "position_ids") || !fits)
      refuse("the model takes an input '{}' that is not token ids or positions [1, tokens] or [axes, 1, tokens]",
             name.substr(0, 40));
    (name == "input_ids" ? graph_.token_ids : graph_.positions) = id;
    make(id, type);
  }

  void read_parameter(const Json& json) {
    ExportedParameter parameter;
    parameter.name = json.at("name").get<std::string>();
    check_name(parameter.name, "parameter");
    for (const Json& source : json.at("sources")) {
      parameter.sources.push_back({source.at("name").get<std::string>(), json_integers(source.at("shape"))});
      check_name(parameter.sources.back().name, "tensor");
    }
    parameter.steps = json.at("steps"), parameter.result = json.at("result");
    for (const Json& step : parameter.steps) kernels::check_operator(step.at("op").get<std::string>());
    if (parameter.sources.empty() || !parameter.steps.is_array())
      refuse("parameter '{}' has no source tensor", parameter.name);
    parameter.splits = json.value("splits", std::vector<std::string>());
    for (const std::string& part : parameter.splits) check_name(part, "linear of an expert");
    parameter.tied = json.value("tied", "");
    check_name(parameter.tied, "parameter");
    const auto id = json_integer(json.at("id"));
    ValueType type = read_type(json);
    if (!type.known()) refuse("parameter '{}' has no dtype", parameter.name);
    for (const Size& size : type.shape)
      if (size.power != 0) refuse("parameter '{}' has a dimension of tokens", parameter.name);
    make(id, std::move(type));
    graph_.parameters.emplace(id, std::move(parameter));
  }

  void read_constants() {
    std::shared_ptr<const checkpoint::SafetensorsFile> file;
    std::size_t bytes = 0;
    for (const Json& json : json_.at("constants")) {
      if (file == nullptr) file = checkpoint::SafetensorsFile::open(folder_ / "constants.safetensors");
      graph::Constant constant;
      constant.name = json.at("name").get<std::string>();
      check_name(constant.name, "constant");
      if (!file->contains(constant.name)) refuse("constant '{}' is missing in constants.safetensors", constant.name);
      const at::Tensor value = file->tensor(constant.name).contiguous();
      ValueType type = read_type(json);
      constant.dtype = type.dtype, constant.shape = value.sizes().vec();
      const bool same =
          value.scalar_type() == kernels::dtype_of_name(type.dtype) && type.shape.size() == constant.shape.size() &&
          std::equal(type.shape.begin(), type.shape.end(), constant.shape.begin(), [](const Size& a, std::int64_t b) {
            return a == Size{b, 0, true};
          });
      if (!same) refuse("constant '{}' has another dtype or shape in constants.safetensors", constant.name);
      bytes += value.nbytes();
      if (bytes > kMostConstantBytes) refuse("constants take more than {} MiB", kMostConstantBytes >> 20);
      constant.bytes.assign(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
      const auto id = json_integer(json.at("id"));
      make(id, std::move(type));
      graph_.constants.emplace(id, std::move(constant));
    }
  }

  void read_node(const Json& json) {
    ExportedNode node;
    node.op = json.at("op").get<std::string>();
    if (node.op != kMergeImages && node.op != kAddImages) kernels::check_operator(node.op);
    node.arguments = json.at("args");
    node.module = static_cast<std::size_t>(json_integer(json.at("module")));
    node.out = json_integer(json.at("out"));
    node.mixes = json.value("mixes", "");
    if (!node.arguments.is_array() || node.module >= graph_.modules.size()) refuse("node {} is damaged", node.out);
    if (node.mixes.size() > kMostName) refuse("node {} has a long reason", node.out);
    each_value(node.arguments, [&](std::int64_t value) {
      if (!is_made(value))
        refuse("node {} ({}) reads value {} before it is computed: a cycle, or a wrong order", node.out, node.op,
               value);
    });
    make(node.out, read_type(json));
    graph_.nodes.push_back(std::move(node));
  }

  const Json& json_;
  const std::filesystem::path& folder_;
  ExportedGraph graph_;
  std::vector<bool> made_;
};

}  // namespace

ExportedGraph read_exported_graph(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFile;
  const Json json =
      parse_json(read_text_file(path, kMostBytes), path.string(), {.most_levels = 200, .most_values = kMostJsonValues});
  try {
    return Reader(json, folder).read();
  } catch (const nlohmann::json::exception& fault) {
    refuse("a member is missing or has the wrong type ({})", std::string(fault.what()).substr(0, 120));
  }
}

}  // namespace layerpress::importer
