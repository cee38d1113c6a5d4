#include "layerpress/importer/expert_gate.h"

#include <c10/core/ScalarType.h>

#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::importer {

graph::Aten expert_gate(const ExpertGate& gate, bool gated, std::int64_t intermediate, const std::string& dtype) {
  graph::Aten node;
  node.features = intermediate;
  node.token_bytes = gate.row_bytes;
  if (!gated) {
    node.program = gate.program;
    return node;
  }
  // The program takes gate and up as one value, as the model's parameters lie.
  const std::int64_t kBoth = -1, kFlat = -2;  // no value of an export has such a number
  const Json both = Json::array({Json{{"i", 0}}, Json{{"i", 1}}});
  Json steps = Json::array();
  if (gate.interleaved) {
    steps.push_back({"aten.stack.default", Json::array({both, -1}), kBoth});
    steps.push_back({"aten.flatten.using_ints", Json::array({Json{{"v", kBoth}}, 1, 2}), kFlat});
  } else {
    steps.push_back({"aten.cat.default", Json::array({both, -1}), kFlat});
  }
  const auto moved = [&](const Json& argument) {
    return with_replaced(argument, [&](const Json& object) {
      return object.contains("i") ? Json{{"v", kFlat}} : object;
    });
  };
  Json program = parse_json(gate.program, "program");
  for (const Json& step : program.at("steps")) steps.push_back({step.at(0), moved(step.at(1)), step.at(2)});
  const Json input = {{"shape", {-1, intermediate}}, {"dtype", dtype}};
  program["inputs"] = Json::array({input, input});
  program["steps"] = steps;
  program["result"] = moved(program["result"]);
  node.token_bytes += 2 * intermediate * static_cast<std::int64_t>(c10::elementSize(kernels::dtype_of_name(dtype)));
  node.program = program.dump();
  kernels::TensorProgram::compile(node.program);
  return node;
}

}  // namespace layerpress::importer
