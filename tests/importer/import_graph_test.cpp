#include "layerpress/importer/import_graph.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/graph/text.h"
#include "layerpress/importer/expert_gate.h"
#include "layerpress/kernels/program/tensor_program.h"
#include "tests/importer/small_export.h"

namespace layerpress::importer {
namespace {

model::TracedModel imported(const Json& graph) {
  const TemporaryDirectory folder;
  test::write_export(folder.path(), graph);
  return import_graph(folder.path());
}

/// The message that a changed export gives.
std::string refusal(const std::function<void(Json&)>& change) {
  Json graph = test::small_export();
  change(graph);
  try {
    imported(graph);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "nothing is refused";
}

std::vector<std::string> kinds(const graph::Graph& graph) {
  std::vector<std::string> kinds;
  for (const graph::Node& node : graph.nodes) kinds.emplace_back(graph::kind_name(node.operation));
  return kinds;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ImportGraph, TakesCertainPatternsForNodesOfOurs) {
  const model::TracedModel model = imported(test::small_export());
  EXPECT_EQ(kinds(model.graph), (std::vector<std::string>{"embedding", "rms_norm", "aten", "linear"}));
  const auto& norm = std::get<graph::RmsNorm>(model.graph.nodes[1].operation);
  EXPECT_EQ(norm.weight, "model.layer.norm.weight");
  EXPECT_EQ(norm.size, 8);
  EXPECT_DOUBLE_EQ(norm.epsilon, 1e-5);
  EXPECT_EQ(model.default_sequential_targets, std::vector<std::string>{"SmallLayer"});
  EXPECT_TRUE(model.left_out.empty());
}

TEST(ImportGraph, TextHasConstants) {
  const std::string text = graph::to_text(imported(test::small_export()).graph);
  expect_part(text, "constant {\"name\":\"model.layer.factor\"");
}

TEST(ImportGraph, TakesAPowerForTheRootOfANorm) {
  const auto kinds_with = [](double exponent) {
    Json graph = test::small_export();
    graph["nodes"][4] = test::node(9, "aten.pow.Tensor_Scalar", {test::read(8), exponent}, 1, {1, "T", 1});
    return kinds(imported(graph).graph);
  };
  EXPECT_EQ(kinds_with(-0.5), (std::vector<std::string>{"embedding", "rms_norm", "aten", "linear"}));
  EXPECT_EQ(kinds_with(-1), (std::vector<std::string>{"embedding", "aten", "linear"}));
}

TEST(ImportGraph, KeepsAPatternThatIsNotQuiteANorm) {
  Json graph = test::small_export();
  graph["nodes"][1]["args"][1] = 3;  // the mean of cubes
  EXPECT_EQ(kinds(imported(graph).graph), (std::vector<std::string>{"embedding", "aten", "linear"}));
}

TEST(ImportGraph, TakesAProductWithATransposedWeightForALinear) {
  Json graph = test::small_export();
  graph["nodes"].erase(8);
  graph["nodes"].push_back(test::node(13, "aten.numpy_T.default", Json::array({test::read(3)}), 3, {8, 12}));
  graph["nodes"].push_back(test::node(14, "aten.matmul.default", {test::read(12), test::read(13)}, 3, {1, "T", 12}));
  graph["values"] = 15, graph["output"] = 14;
  graph["modules"][3] = Json::array({"lm_head", "SmallLinear"});
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(model.graph.modules[model.graph.nodes[3].module].class_name, "Linear");
  EXPECT_EQ(kinds(model.graph), (std::vector<std::string>{"embedding", "rms_norm", "aten", "linear"}));
  EXPECT_EQ(std::get<graph::Linear>(model.graph.nodes[3].operation).weight, "lm_head.weight");
  EXPECT_TRUE(model.left_out.empty());
}

TEST(ImportGraph, TakesALinearOfOneFeatureForAGate) {
  Json graph = test::small_export();
  graph["parameters"][2] = test::parameter(3, "lm_head.weight", {1, 8});
  graph["nodes"][8]["shape"] = {1, "T", 1};
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(model.graph.modules[model.graph.nodes[3].module].class_name, "Gate");
}

TEST(ImportGraph, LeavesAWeightThatLayersShareUncompressed) {
  const auto kinds_with = [](const std::string& shared) {
    Json graph = test::small_export();
    graph["parameters"][2]["tied"] = graph["parameters"][2]["sources"][0]["name"] = shared;
    return kinds(imported(graph).graph);
  };
  EXPECT_EQ(kinds_with("model.other.weight"), (std::vector<std::string>{"embedding", "rms_norm", "aten"}));
  EXPECT_EQ(kinds_with("model.embed.weight"), (std::vector<std::string>{"embedding", "rms_norm", "aten", "linear"}));
}

TEST(ImportGraph, UsesTheNamesOfTheCheckpoint) {
  Json graph = test::small_export();
  for (const int p : {0, 1}) {
    const auto name = graph["parameters"][p]["name"].get<std::string>();
    graph["parameters"][p]["sources"][0]["name"] = "model.language" + name.substr(5);
  }
  const graph::Graph imported_graph = imported(graph).graph;
  EXPECT_EQ(imported_graph.module_name(imported_graph.nodes[1]), "model.language.layer.norm");
}

TEST(ImportGraph, AMovedParameterRenamesNoOtherModule) {
  Json graph = test::small_export();
  graph["parameters"][1]["name"] = "model.layer.mlp.norm.weight";
  graph["parameters"][1]["sources"][0]["name"] = "model.layer.norm.weight";
  graph["parameters"][2]["name"] = graph["parameters"][2]["sources"][0]["name"] = "model.layer.mlp.out.weight";
  graph["modules"][3] = Json::array({"model.layer.mlp.out", "Linear"});
  graph["linears"] = Json::array({"model.layer.mlp.out"});
  graph["head"] = "model.layer.mlp.out";
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(model.graph.module_name(model.graph.nodes.back()), "model.layer.mlp.out");
  EXPECT_TRUE(model.left_out.empty());
  EXPECT_EQ(model.aliases.at("model.layer.mlp.out"), std::vector<std::string>{"lm_head"});
}

TEST(ImportGraph, AMovedRouterRenamesNoExperts) {
  Json graph = test::expert_export();
  graph["parameters"][1]["sources"][0]["name"] = "model.layer.router.gate.weight";
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(model.graph.module_name(model.graph.nodes[1]), "model.layer.router.gate");
  EXPECT_EQ(model.graph.module_name(model.graph.nodes[4]), "model.layer.experts.0.up_proj");
  EXPECT_TRUE(model.left_out.empty());
}

TEST(ImportGraph, NamesLinearsThatHaveNoNode) {
  Json graph = test::small_export();
  graph["linears"].push_back("model.layer.gate");
  EXPECT_EQ(imported(graph).left_out, std::vector<std::string>{"model.layer.gate"});
}

TEST(ImportGraph, ComputesWhatSeveralNodesNeedOnceIfItCanBeKept) {
  Json graph = test::small_export();
  graph["nodes"].erase(8);
  graph["parameters"].push_back(test::parameter(17, "second.weight", {12, 8}));
  graph["nodes"].push_back(test::node(13, "aten.linear.default", {test::read(12), test::read(3)}, 3, {1, "T", 12}));
  graph["nodes"].push_back(test::node(14, "aten.tanh.default", {test::read(12)}, 2, {1, "T", 8}));
  graph["nodes"].push_back(test::node(15, "aten.linear.default", {test::read(14), test::read(17)}, 3, {1, "T", 12}));
  graph["nodes"].push_back(test::node(16, "aten.add.Tensor", {test::read(13), test::read(15)}, 3, {1, "T", 12}));
  graph["values"] = 18, graph["output"] = 16;
  EXPECT_EQ(kinds(imported(graph).graph),
            (std::vector<std::string>{"embedding", "rms_norm", "aten", "linear", "aten", "linear", "add"}));
}

TEST(ImportGraph, LeavesALinearThatIsUsedTwice) {
  Json graph = test::small_export();
  graph["nodes"].push_back(test::node(14, "aten.tanh.default", {test::read(12)}, 2, {1, "T", 8}));
  graph["nodes"].push_back(test::node(15, "aten.linear.default", {test::read(14), test::read(3)}, 3, {1, "T", 12}));
  graph["nodes"].push_back(test::node(16, "aten.add.Tensor", {test::read(13), test::read(15)}, 3, {1, "T", 12}));
  graph["values"] = 17, graph["output"] = 16;
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(kinds(model.graph), (std::vector<std::string>{"embedding", "rms_norm", "aten"}));
  EXPECT_EQ(model.left_out, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(model.left_out_reasons.at("lm_head"), "the model runs it several times");
}

TEST(ImportGraph, SaysWhyLinearsAreLeft) {
  Json graph = test::small_export();
  graph["modules"][3][1] = "Conv1D";
  graph["parameters"][2] = test::parameter(3, "lm_head.weight", {8, 12});
  graph["nodes"][8]["op"] = "aten.matmul.default";
  expect_part(imported(graph).left_out_reasons.at("lm_head"), "Conv1D holds its weight transposed");
  graph = test::small_export();
  graph["nodes"].erase(8);
  graph["nodes"].push_back(test::node(13, "aten.cat.default", {{test::read(12), test::read(12)}, 1}, 3, {1, "2*T", 8}));
  graph["nodes"].push_back(test::node(14, "aten.linear.default", {test::read(13), test::read(3)}, 3, {1, "2*T", 12}));
  graph["nodes"].push_back(
      test::node(15, "aten.slice.Tensor", {test::read(14), 1, 0, Json{{"tokens", 1}}}, 3, {1, "T", 12}));
  graph["values"] = 16, graph["output"] = 15;
  expect_part(imported(graph).left_out_reasons.at("lm_head"), "on several rows for a token");
}

TEST(ImportGraph, GivesExpertsWithoutAGateLinearsOfTheirOwn) {
  const model::TracedModel model = imported(test::expert_export());
  std::vector<std::string> wanted = {"embedding", "linear", "aten"};
  for (int e = 0; e < 2; ++e)
    for (const char* kind : {"select_tokens", "linear", "aten", "linear", "take_routed", "expert"})
      wanted.emplace_back(kind);
  EXPECT_EQ(kinds(model.graph), wanted);
  EXPECT_EQ(model.graph.module_name(model.graph.nodes[4]), "model.layer.experts.0.up_proj");
  EXPECT_EQ(model.graph.modules[model.graph.nodes[1].module].class_name, "Router");
  EXPECT_EQ(model.graph.values[model.graph.nodes[5].output].rows, graph::Rows::kSelected);
  EXPECT_TRUE(model.left_out.empty());
  EXPECT_EQ(model.uniform_modules, std::vector<std::string>{"model.layer.experts"});
}

TEST(ImportGraph, LeavesExpertsTogetherWhoseGateMixesRows) {
  Json graph = test::expert_export();
  graph["gates"]["gate0"]["nodes"][0]["mixes"] = "relu over tokens";
  const model::TracedModel model = imported(graph);
  EXPECT_EQ(kinds(model.graph), (std::vector<std::string>{"embedding", "linear", "aten"}));
  EXPECT_EQ(model.left_out, std::vector<std::string>{"model.layer.experts"});
}

TEST(ImportGraph, PutsGateAndUpTogetherAsTheModelDoes) {
  ExpertGate gate;
  gate.program =
      R"({"inputs":[{"shape":[-1,6],"dtype":"float32"}],"weights":[],"constants":0,"axis":0,"result":{"v":0},)"
      R"("steps":[["aten.mul.Scalar",[{"i":0},1],0]]})";
  const at::Tensor first = at::arange(6, at::kFloat).view({2, 3}), second = first + 10;
  for (const bool interleaved : {false, true}) {
    gate.interleaved = interleaved;
    const graph::Aten node = expert_gate(gate, true, 3, "float32");
    kernels::ProgramInputs inputs;
    inputs.values = {first, second};
    const at::Tensor both = interleaved ? at::stack({first, second}, -1).flatten(1) : at::cat({first, second}, 1);
    EXPECT_TRUE(kernels::TensorProgram::compile(node.program)->run(inputs, 2).equal(both));
    inputs.values = {first.slice(0, 0, 0), second.slice(0, 0, 0)};
    EXPECT_EQ(kernels::TensorProgram::compile(node.program)->run(inputs, 0).sizes(), (std::vector<std::int64_t>{0, 6}));
  }
}

TEST(ImportGraph, RefusesOperatorsThatDoMoreThanCompute) {
  const auto with = [](const char* op) { return refusal([&](Json& graph) { graph["nodes"][1]["op"] = op; }); };
  for (const char* op : {"aten.from_file.default", "aten.as_strided.default", "prim.Print.default", "aten.mul_.Tensor",
                         "aten.set_.source_Storage", "aten._print.default", "aten.rand_like.default"})
    expect_part(with(op), "may not be called");
  expect_part(with("aten.no_such_operator.default"), "not known to this release");
  expect_part(with("aten.mul.Tensor\n; rm"), "not the name of an operator");
  expect_part(with("sym.exec"), "not a function of numbers");
}

TEST(ImportGraph, RefusesWrongStructure) {
  expect_part(refusal([](Json& graph) { graph["nodes"][1]["args"][0] = test::read(12); }),
              "before it is computed: a cycle");
  expect_part(refusal([](Json& graph) { graph["nodes"][2]["out"] = 6; }), "value 6 is computed twice");
  expect_part(refusal([](Json& graph) { graph["nodes"][2]["out"] = 99; }), "value 99 is out of range");
  expect_part(refusal([](Json& graph) { graph["output"] = 99; }), "the output 99 is not computed");
  expect_part(refusal([](Json& graph) { graph["values"] = std::int64_t{1} << 40; }), "are more than");
  expect_part(refusal([](Json& graph) { graph["nodes"][0]["module"] = 7; }), "damaged");
  expect_part(refusal([](Json& graph) { graph.erase("nodes"); }), "a member is missing");
  expect_part(refusal([](Json& graph) { graph["format"] = "layerpress.graph.v2"; }), "format");
  expect_part(refusal([](Json& graph) { graph["inputs"][0]["name"] = "pixel_values"; }), "input 'pixel_values'");
}

TEST(ImportGraph, RefusesWrongTypesAndNames) {
  expect_part(refusal([](Json& graph) { graph["nodes"][1]["dtype"] = "float31"; }), "dtype 'float31'");
  expect_part(refusal([](Json& graph) { graph["constants"][0]["dtype"] = "int64"; }), "another dtype or shape");
  expect_part(refusal([](Json& graph) { graph["constants"][0]["name"] = "model.none"; }), "missing in constants");
  expect_part(refusal([](Json& graph) { graph["modules"][0][0] = "model\" in 0\n"; }), "name of a module");
  expect_part(refusal([](Json& graph) { graph["parameters"][0]["sources"][0]["name"] = "../x"; }), "name of a tensor");
  expect_part(refusal([](Json& graph) { graph["class"] = std::string(5000, 'x'); }), "name of a class");
  expect_part(
      refusal([](Json& graph) { graph["nodes"][7]["args"].push_back(1), graph["nodes"][7]["args"].push_back(1); }),
      "arguments");
  expect_part(refusal([](Json& graph) { graph["nodes"][7]["args"][1] = "text"; }), "not an argument");
}

}  // namespace
}  // namespace layerpress::importer
