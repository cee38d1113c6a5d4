#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/graph/text.h"
#include "layerpress/importer/import_graph.h"
#include "tests/importer/small_export.h"

namespace layerpress::importer {
namespace {

using test::node;
using test::read;

/// embedding, a rotation of two heads of 4 features, a linear. The frequencies are 0 and 1.
Json rotary_export() {
  Json graph = test::small_export();
  Json positions = {{"name", "position_ids"}, {"id", 2}, {"dtype", "int64"}, {"shape", {1, "T"}}};
  graph["inputs"].push_back(positions);
  graph["parameters"].erase(1);
  graph["constants"][0]["shape"] = {2};
  const Json row = {1, "T", 8}, split = {1, "T", 2, 4}, heads = {1, 2, "T", 4}, half = {1, 2, "T", 2};
  const Json table = {1, "T", 4}, one = {1, 1, "T", 4};
  const auto list = [](std::initializer_list<Json> items) { return Json(Json::array_t(items)); };
  Json place = node(8, "aten.unsqueeze.default", {read(2), 1}, 2, {1, 1, "T"});
  place["dtype"] = "int64";
  const std::int64_t end = std::numeric_limits<std::int64_t>::max();
  graph["nodes"] = {node(5, "aten.embedding.default", {read(1), read(0)}, 0, row),
                    node(6, "aten.unsqueeze.default", {read(4), 0}, 2, {1, 2}),
                    node(7, "aten.unsqueeze.default", {read(6), 2}, 2, {1, 2, 1}),
                    place,
                    node(9, "aten._to_copy.default", {read(8), Json{{"dtype", "float32"}}}, 2, {1, 1, "T"}),
                    node(10, "aten.matmul.default", {read(7), read(9)}, 2, {1, 2, "T"}),
                    node(11, "aten.transpose.int", {read(10), 1, 2}, 2, {1, "T", 2}),
                    node(12, "aten.cat.default", list({list({read(11), read(11)}), -1}), 2, table),
                    node(13, "aten.cos.default", list({read(12)}), 2, table),
                    node(14, "aten.mul.Tensor", {read(13), 0.5}, 2, table),
                    node(15, "aten.sin.default", list({read(12)}), 2, table),
                    node(16, "aten.mul.Tensor", {read(15), 0.5}, 2, table),
                    node(17, "aten.view.default", list({read(5), list({1, Json{{"tokens", 1}}, 2, 4})}), 2, split),
                    node(18, "aten.transpose.int", {read(17), 1, 2}, 2, heads),
                    node(19, "aten.unsqueeze.default", {read(14), 1}, 2, one),
                    node(20, "aten.unsqueeze.default", {read(16), 1}, 2, one),
                    node(21, "aten.mul.Tensor", {read(18), read(19)}, 2, heads),
                    node(22, "aten.slice.Tensor", {read(18), 3, 0, 2}, 2, half),
                    node(23, "aten.slice.Tensor", {read(18), 3, 2, end}, 2, half),
                    node(24, "aten.neg.default", list({read(23)}), 2, half),
                    node(25, "aten.cat.default", list({list({read(24), read(22)}), -1}), 2, heads),
                    node(26, "aten.mul.Tensor", {read(25), read(20)}, 2, heads),
                    node(27, "aten.add.Tensor", {read(21), read(26)}, 2, heads),
                    node(28, "aten.transpose.int", {read(27), 1, 2}, 2, split),
                    node(29, "aten.view.default", list({read(28), list({1, Json{{"tokens", 1}}, 8})}), 2, row),
                    node(30, "aten.linear.default", {read(29), read(3)}, 3, {1, "T", 12})};
  graph["values"] = 31, graph["output"] = 30;
  return graph;
}

std::string text_of(const Json& graph) {
  const TemporaryDirectory folder;
  write_text_file(folder.path() / "graph.json", graph.dump());
  checkpoint::write_safetensors(folder.path() / "constants.safetensors",
                                {{"model.layer.factor", at::arange(2, at::kFloat)}});
  return graph::to_text(import_graph(folder.path()).graph);
}

TEST(RotaryPattern, BecomesANode) {
  const std::string text = text_of(rotary_export());
  EXPECT_NE(text.find("rope {\"inverse_frequencies\":[0.0,1.0]"), std::string::npos) << text;
  EXPECT_NE(text.find("\"attention_scaling\":0.5"), std::string::npos) << text;
  EXPECT_NE(text.find("rotary(%1) {\"head_dim\":4,\"table\":0,\"offset\":0,\"interleaved\":false}"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("aten"), std::string::npos) << text;
}

/// Changes of one operator, after which the sum is no rotation that we know.
TEST(RotaryPattern, LeavesOtherSums) {
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& nodes) { nodes[19]["op"] = "aten.abs.default"; },  // the second half is not negated
      [](Json& nodes) {
        nodes[20]["args"][0] = Json::array({read(22), read(24)});
      },                                                                         // the halves are not exchanged
      [](Json& nodes) { nodes[10]["op"] = "aten.cos.default"; },                 // two cosines
      [](Json& nodes) { nodes[11]["args"][1] = 2; },                             // two scalings
      [](Json& nodes) { nodes[17]["args"][2] = 1, nodes[17]["args"][3] = 3; }};  // another part of a head
  for (std::size_t c = 0; c < changes.size(); ++c) {
    Json graph = rotary_export();
    changes[c](graph["nodes"]);
    EXPECT_EQ(text_of(graph).find("rotary("), std::string::npos) << "change " << c;
  }
}

}  // namespace
}  // namespace layerpress::importer
