#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <filesystem>

#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::importer::test {

inline Json tensor_type(Json shape) { return {{"dtype", "float32"}, {"shape", std::move(shape)}}; }

inline Json parameter(int id, const std::string& name, const Json& shape) {
  Json json = tensor_type(shape);
  json.update({{"id", id},
               {"name", name},
               {"sources", Json::array({Json{{"name", name}, {"shape", shape}}})},
               {"steps", Json::array()},
               {"result", {{"source", 0}}}});
  return json;
}

inline Json node(int out, const std::string& op, Json arguments, int module, const Json& shape) {
  Json json = tensor_type(shape);
  json.update({{"out", out}, {"op", op}, {"args", std::move(arguments)}, {"module", module}});
  return json;
}

inline Json read(int value) { return {{"v", value}}; }

/// embedding, a norm, tanh times a constant, a linear: 8 features, a vocabulary of 12.
inline Json small_export() {
  Json ids = {{"name", "input_ids"}, {"id", 0}, {"dtype", "int64"}, {"shape", {1, "T"}}};
  Json constant = tensor_type(Json::array({8}));
  constant.update({{"name", "model.layer.factor"}, {"id", 4}});
  const Json row = {1, "T", 8}, one = {1, "T", 1};
  return {
      {"format", "layerpress.graph.v1"},
      {"dtype", "float32"},
      {"class", "SmallForCausalLM"},
      {"way", "hooks"},
      {"least_tokens", 2},
      {"most_tokens", nullptr},
      {"vocab_size", 12},
      {"max_position_embeddings", 64},
      {"tied_head", false},
      {"layer_classes", {"SmallLayer"}},
      {"linears", {"lm_head"}},
      {"gates", Json::object()},
      {"values", 14},
      {"inputs", Json::array({ids})},
      {"parameters",
       {parameter(1, "model.embed.weight", {12, 8}), parameter(2, "model.layer.norm.weight", Json::array({8})),
        parameter(3, "lm_head.weight", {12, 8})}},
      {"constants", Json::array({constant})},
      {"modules",
       Json::array({Json::array({"model.embed", "Embedding"}), Json::array({"model.layer.norm", "SmallNorm"}),
                    Json::array({"model.layer", "SmallLayer"}), Json::array({"lm_head", "Linear"})})},
      {"nodes",
       {node(5, "aten.embedding.default", {read(1), read(0)}, 0, row),
        node(6, "aten.pow.Tensor_Scalar", {read(5), 2}, 1, row),
        node(7, "aten.mean.dim", {read(6), {-1}, true}, 1, one), node(8, "aten.add.Tensor", {read(7), 1e-5}, 1, one),
        node(9, "aten.rsqrt.default", {read(8)}, 1, one), node(10, "aten.mul.Tensor", {read(5), read(9)}, 1, row),
        node(11, "aten.mul.Tensor", {read(2), read(10)}, 1, row),
        node(12, "aten.mul.Tensor", {read(11), read(4)}, 2, row),
        node(13, "aten.linear.default", {read(12), read(3)}, 3, {1, "T", 12})}},
      {"output", 13}};
}

/// A parameter that is a stack of tensors "model.layer.experts.E.NAME.weight" of this shape.
inline Json stacked_parameter(int id, const std::string& name, int count, const Json& shape) {
  Json json = parameter(id, "model.layer.experts." + name, Json::array({count, shape[0], shape[1]}));
  Json sources = Json::array(), references = Json::array();
  for (int e = 0; e < count; ++e) {
    sources.push_back({{"name", fmt::format("model.layer.experts.{}.{}.weight", e, name)}, {"shape", shape}});
    references.push_back({{"source", e}});
  }
  json["sources"] = sources;
  json["steps"] = Json::array({Json{{"op", "aten.stack.default"},
                                    {"args", Json::array({references})},
                                    {"outs", Json::array({count})},
                                    {"several", false}}});
  json["result"] = {{"made", count}};
  return json;
}

/// embedding, a router, two experts of 6 features without a gate: relu between up and down.
inline Json expert_export() {
  Json graph = small_export();
  const Json row = {"T", 8}, one = {"T", 1};
  graph["parameters"] = {parameter(1, "model.embed.weight", {12, 8}), parameter(2, "model.layer.gate.weight", {2, 8}),
                         stacked_parameter(3, "up_proj", 2, {6, 8}), stacked_parameter(4, "down_proj", 2, {8, 6})};
  graph["constants"] = Json::array();
  graph["linears"] = {"model.layer.gate", "model.layer.experts"};
  graph["modules"] =
      Json::array({Json::array({"model.embed", "Embedding"}), Json::array({"model.layer.gate", "Linear"}),
                   Json::array({"model.layer.experts", "SmallExperts"})});
  Json index = node(8, "aten.argmax.default", {read(7), -1, true}, 1, one);
  index["dtype"] = "int64";
  graph["nodes"] = {
      node(5, "aten.embedding.default", {read(1), read(0)}, 0, {1, "T", 8}),
      node(6, "aten.view.default", Json::array({read(5), Json::array({Json{{"tokens", 1}}, 8})}), 0, row),
      node(7, "aten.linear.default", {read(6), read(2)}, 1, {"T", 2}),
      index,
      node(9, "aten.amax.default", Json::array({read(7), Json::array({-1}), true}), 1, one),
      node(10, "layerpress.experts.default",
           {read(6), read(8), read(9), read(3), nullptr, read(4), nullptr, false, false, "gate0"}, 2, row)};
  const Json gate_row = {"T", 6};
  Json input = tensor_type(gate_row);
  input.update({{"id", 0}, {"name", "input_ids"}});
  graph["gates"]["gate0"] = {
      {"inputs", Json::array({input})},
      {"parameters", Json::array()},
      {"constants", Json::array()},
      {"interleaved", false},
      {"nodes", Json::array({node(1, "aten.relu.default", Json::array({read(0)}), 0, gate_row)})},
      {"output", 1}};
  graph["values"] = 11, graph["output"] = 10;
  return graph;
}

inline void write_export(const std::filesystem::path& folder, const Json& graph) {
  write_text_file(folder / "graph.json", graph.dump());
  checkpoint::write_safetensors(folder / "constants.safetensors", {{"model.layer.factor", at::arange(8, at::kFloat)}});
}

}  // namespace layerpress::importer::test
