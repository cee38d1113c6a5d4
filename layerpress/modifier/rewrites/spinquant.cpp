#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/residual_stream.h"
#include "layerpress/graph/facts/value_heads.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/kernels/products/hadamard.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/rewrite/rewrite.h"

namespace layerpress::modifier {
namespace {

using kernels::Hadamard;
using HadamardPtr = std::shared_ptr<const Hadamard>;

/// What becomes of a tensor.
struct TurnedTensor {
  kernels::MatrixRotation rotation{};
  std::string norm{};            ///< whose weight multiplies the columns; "": none
  double norm_offset = 0;        ///< added to that weight
  std::optional<double> fill{};  ///< all elements are this number
};

/// The tensors that rotations change, by name, and who reads and writes them so.
class TurnedTensors {
 public:
  explicit TurnedTensors(const rewrite::Model& model, const std::string& where) : model_(model), where_(where) {}

  /// The tensor of this node, to be changed.
  TurnedTensor& of(graph::NodeId node, const std::string& name) {
    handled_.emplace(node, name);
    return tensors_[name];
  }

  /// Gives a linear that shares an embedding's weight a weight of its own, and returns its name.
  std::string untied(graph::NodeId node, const std::string& weight, bool is_shared) {
    if (!is_shared) return weight;
    const auto* stored = std::get_if<graph::Linear>(&model_.traced.graph.nodes[node].operation);
    if (stored == nullptr) refuse(weight);
    std::string own = model_.traced.graph.module_name(model_.traced.graph.nodes[node]) + ".weight";
    graph::Linear linear = *stored;
    linear.weight = own;
    if (changes_.operations.emplace(node, linear).second) changes_.copies.push_back({own, weight});
    return own;
  }

  void turn_rows(graph::NodeId node, const std::string& name, const HadamardPtr& rotation,
                 std::vector<kernels::MatrixRotation::Run> rows) {
    kernels::MatrixRotation& own = of(node, name).rotation;
    const auto same = [](const auto& a, const auto& b) { return a.first == b.first && a.count == b.count; };
    if (own.of_rows != nullptr &&
        (own.of_rows != rotation || !std::equal(own.rows.begin(), own.rows.end(), rows.begin(), rows.end(), same)))
      refuse(name);
    own.of_rows = rotation, own.rows = std::move(rows);
  }

  void turn_columns(graph::NodeId node, const std::string& name, const HadamardPtr& rotation) {
    kernels::MatrixRotation& own = of(node, name).rotation;
    if (own.of_columns != nullptr && own.of_columns != rotation) refuse(name);
    own.of_columns = rotation;
  }

  /// Turns what a node takes of images.
  void turn_images(graph::NodeId node, const graph::ImageRotation& rotation) {
    graph::Operation operation = model_.traced.graph.nodes[node].operation;
    if (auto* merging = std::get_if<graph::MergeImages>(&operation)) merging->rotation = rotation;
    if (auto* adding = std::get_if<graph::AddImages>(&operation)) adding->rotation = rotation;
    changes_.operations.insert_or_assign(node, operation);
  }

  void fold_norm(graph::NodeId node, const std::string& name, const graph::RmsNorm& norm) {
    TurnedTensor& own = of(node, name);
    if (!own.norm.empty() && own.norm != norm.weight) refuse(name);
    own.norm = norm.weight, own.norm_offset = norm.weight_offset;
  }

  [[noreturn]] void refuse(const std::string& name) const {
    throw RecipeError(
        "[recipe.check] {}: {} is read in several ways, which one rotation cannot serve; this model cannot be rotated",
        where_, name);
  }

  /// Throws if a node reads a changed tensor as it was.
  void check_readers() const {
    const graph::Graph& graph = model_.traced.graph;
    const std::vector<std::vector<graph::NodeId>> consumers = graph.consumers();
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
      const graph::Node& node = graph.nodes[n];
      // Linears of experts only have inputs; their outputs are other nodes'.
      if (consumers[node.output].empty() && node.output != graph.output) continue;
      for (const graph::WeightUse& use : graph::weights_of(node.operation))
        if (tensors_.count(use.name) != 0 && handled_.count({n, use.name}) == 0 && changes_.operations.count(n) == 0)
          refuse(use.name);
    }
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  rewrite::Changes take() {
    check_readers();
    std::map<std::string, std::string> copied;
    for (const auto& [name, of] : changes_.copies) copied[name] = of;
    for (const auto& [name, tensor] : tensors_) {
      const auto found = copied.find(name);
      changes_.computed.push_back(computed(name, found == copied.end() ? name : found->second, tensor));
    }
    if (!changes_.copies.empty()) changes_.config = rewrite::untied_config(model_.checkpoint->config());
    return std::move(changes_);
  }

 private:
  checkpoint::ComputedTensor computed(const std::string& name, const std::string& of,
                                      const TurnedTensor& tensor) const {
    const checkpoint::StoredTensor& stored = model_.checkpoint->spec(of);
    if (stored.dtype != at::kFloat && stored.dtype != at::kBFloat16 && stored.dtype != at::kHalf)
      throw RecipeError("[recipe.check] {}: {} is stored in {}, which cannot be rotated", where_, of,
                        c10::toString(stored.dtype));
    checkpoint::ComputedTensor made{.spec = {name, stored.dtype, stored.shape}, .parts = {name}, .compute = {}};
    if (tensor.fill) {
      made.compute = [spec = made.spec, value = *tensor.fill] { return at::full(spec.shape, value, spec.dtype); };
      return made;
    }
    made.compute = [checkpoint = model_.checkpoint, of, tensor] {
      kernels::MatrixRotation rotation = tensor.rotation;
      if (!tensor.norm.empty())
        rotation.factors = checkpoint->tensor(tensor.norm).to(at::kDouble).add(tensor.norm_offset);
      return kernels::rotated(checkpoint->tensor(of), rotation);
    };
    made.workspace_bytes = kernels::rotation_workspace(stored.shape, tensor.rotation);
    if (model_.checkpoint->is_computed(of))
      made.workspace_bytes += stored.nbytes() + model_.checkpoint->workspace_bytes(of);
    return made;
  }

  const rewrite::Model& model_;
  const std::string& where_;
  std::map<std::string, TurnedTensor> tensors_;
  std::set<std::pair<graph::NodeId, std::string>> handled_;
  rewrite::Changes changes_;
};

const std::vector<Argument> kSpinQuantArguments = {{"rotations", "list[str]"},   {"transform_type", "str"},
                                                   {"randomize", "bool"},        {"learnable", "bool"},
                                                   {"precision", "str | None"},  {"transform_block_size", "int | None"},
                                                   {"mappings", "None"},         {"norm_mappings", "None"},
                                                   {"transform_config", "None"}, {"where_possible", "bool"}};

/// It is not known which tensors write embeddings of images.
class VisionPartError : public RecipeError {
 public:
  using RecipeError::RecipeError;
};

class SpinQuantModifier : public compression::Modifier, public rewrite::Rewrite {
 public:
  SpinQuantModifier(const Json& arguments, const std::string& where) : where_(where) {
    without_effect_ = check_arguments(arguments, where, kSpinQuantArguments);
    if (json_has(arguments, "precision")) without_effect_.emplace_back("precision");
    refuse_others(arguments);
    read_rotations(arguments);
    const auto type = json_get_or<std::string>(arguments, "transform_type", where, "hadamard");
    if (type != "hadamard" && type != "random-hadamard")
      throw RecipeError("[recipe.modifier] {}: transform_type '{}' is not supported; hadamard and random-hadamard are",
                        where, type);
    const bool permutes = json_get_or<bool>(arguments, "randomize", where, false);
    seeded_ = type == "random-hadamard" ? Hadamard::Seeded::kSigned
              : permutes                ? Hadamard::Seeded::kPermuted
                                        : Hadamard::Seeded::kNot;
    block_ = json_get_or<std::int64_t>(arguments, "transform_block_size", where, 0);
    if (block_ < 0 || (json_has(arguments, "transform_block_size") && block_ == 0))
      throw RecipeError("[recipe.modifier] {}: transform_block_size is not positive", where);
    where_possible_ = json_get_or<bool>(arguments, "where_possible", where, false);
  }

  std::string type() const override { return "SpinQuantModifier"; }
  bool needs_data() const override { return false; }

  rewrite::Changes changes(const rewrite::Model& model) const override {
    if (!where_possible_) return changes(model, turns_stream_, turns_heads_);
    const std::string no_stream = turns_stream_ ? hindrance(model, true, false) : "";
    const std::string no_heads = turns_heads_ ? hindrance(model, false, true) : "";
    rewrite::Changes found = changes(model, turns_stream_ && no_stream.empty(), turns_heads_ && no_heads.empty());
    for (const auto& [name, reason] : {std::pair("R1", no_stream), std::pair("R2", no_heads)})
      if (!reason.empty()) found.text += fmt::format("; no {}: {}", name, reason);
    return found;
  }

 private:
  rewrite::Changes changes(const rewrite::Model& model, bool stream, bool heads) const {
    TurnedTensors turned(model, where_);
    std::vector<std::string> lines;
    if (stream) lines.push_back(turn_stream(model, turned));
    if (heads) lines.push_back(turn_heads(model.traced.graph, turned));
    rewrite::Changes changes = turned.take();
    changes.text = fmt::format("SpinQuantModifier: {}", lines.empty() ? "no rotation" : join(lines, "; "));
    return changes;
  }

  /// Why the model does not allow these rotations; "" if it does.
  std::string hindrance(const rewrite::Model& model, bool stream, bool heads) const {
    try {
      (void)changes(model, stream, heads);
    } catch (const VisionPartError&) {
      throw;  // whether R1 is possible must not depend on files beside the model
    } catch (const RecipeError& failure) {
      const std::string text = failure.what(), place = fmt::format("[recipe.check] {}: ", where_);
      return text.starts_with(place) ? text.substr(place.size()) : text;
    }
    return "";
  }

  void refuse_others(const Json& arguments) const {
    if (json_get_or<bool>(arguments, "learnable", where_, false))
      throw RecipeError("[recipe.modifier] {}: learnable rotations are not supported; leave learnable false", where_);
    for (const char* key : {"mappings", "norm_mappings"})
      if (json_has(arguments, key))
        throw RecipeError(
            "[recipe.modifier] {}: {} are not needed, because the model's graph says what reads and writes the "
            "residual stream; leave it out",
            where_, key);
    if (json_has(arguments, "transform_config"))
      throw RecipeError(
          "[recipe.modifier] {}: transform_config is not supported, because engines other than vLLM ignore it in the "
          "result and would compute nonsense; write rotations R1 and R2 instead",
          where_);
  }

  void read_rotations(const Json& arguments) {
    const auto names = json_get_or<std::vector<std::string>>(arguments, "rotations", where_, {"R1", "R2"});
    for (const std::string& given : names) {
      const std::string name = upper_case(given);
      if (name == "R3" || name == "R4")
        throw RecipeError(
            "[recipe.modifier] {}: rotation {} is computed while a model is served, which engines other than vLLM do "
            "not do: they would compute nonsense; use R1 and R2",
            where_, name);
      if (name != "R1" && name != "R2")
        throw RecipeError("[recipe.modifier] {}: rotation '{}' is not known; R1 and R2 are", where_, name);
      (name == "R1" ? turns_stream_ : turns_heads_) = true;
    }
    if (names.empty()) throw RecipeError("[recipe.modifier] {}: rotations names none; R1 and R2 are known", where_);
  }

  /// What a user can do about a rotation that is refused; "" where it is left out instead.
  std::string advice(const std::string& text) const { return where_possible_ ? "" : text; }

  /// `otherwise`: what to do without it.
  HadamardPtr matrix_of(std::int64_t size, const char* what, const std::string& otherwise) const {
    HadamardPtr matrix = Hadamard::of_size(size, seeded_);
    if (matrix == nullptr)
      throw RecipeError("[recipe.check] {}: no Hadamard matrix of order {} ({}) is known here{}", where_, size, what,
                        advice("; " + otherwise));
    return matrix;
  }

  static constexpr graph::NodeId kOutside = -1;  // a tensor's reader that is not in the graph
  static constexpr const char* kNeither = "; leave the modifier out, because R1 and R2 are both impossible here";

  /// R1. Returns a few words.
  std::string turn_stream(const rewrite::Model& model, TurnedTensors& turned) const {
    const graph::Graph& graph = model.traced.graph;
    const graph::ResidualStream stream = graph::residual_stream(graph);
    if (!stream.hindrance.empty())
      throw RecipeError("[recipe.check] {}: R1 would change what this model computes: {}{}", where_, stream.hindrance,
                        without_stream(graph));
    const std::int64_t size = block_ > 0 ? block_ : stream.width;
    if (stream.width % size != 0)
      throw RecipeError("[recipe.check] {}: transform_block_size {} does not divide the hidden size {}", where_, size,
                        stream.width);
    const std::int64_t power = size & -size;  // the greatest power of two that divides it
    const HadamardPtr matrix =
        matrix_of(size, "R1", power > 1 ? fmt::format("write transform_block_size: {}", power) : "use rotations: [R2]");
    std::set<std::string> tables;
    for (const graph::ResidualStream::Writer& writer : stream.writers) {
      if (graph::is_embedding(graph.nodes[writer.node].operation)) {
        tables.insert(writer.weight);
        turned.turn_columns(writer.node, writer.weight, matrix);
      } else {
        turned.turn_rows(writer.node, writer.weight, matrix, {{0, stream.width}});
      }
      if (!writer.bias.empty()) turned.turn_rows(writer.node, writer.bias, matrix, {{0, stream.width}});
    }
    for (const graph::ResidualStream::Reader& reader : stream.readers) {
      const std::string weight = turned.untied(reader.node, reader.weight, tables.count(reader.weight) != 0);
      turned.turn_columns(reader.node, weight, matrix);
      if (reader.norm >= 0)
        turned.fold_norm(reader.node, weight, std::get<graph::RmsNorm>(graph.nodes[reader.norm].operation));
    }
    for (const graph::NodeId n : stream.norms) {
      const auto& norm = std::get<graph::RmsNorm>(graph.nodes[n].operation);
      turned.of(n, norm.weight).fill = 1 - norm.weight_offset;
    }
    const rewrite::OutsideWriters outside = image_writers(model, stream);
    for (const std::string& name : outside.rows) turned.turn_rows(kOutside, name, matrix, {{0, stream.width}});
    for (const std::string& name : outside.columns) turned.turn_columns(kOutside, name, matrix);
    for (const graph::NodeId n : stream.images)
      turned.turn_images(n, {.order = size, .seeded = static_cast<std::int64_t>(seeded_)});
    refuse_unread(model, stream.width, turned, outside.used);
    const std::string images = stream.images.empty() ? ""
                                                     : fmt::format(" and {} tensors of the vision part",
                                                                   outside.rows.size() + outside.columns.size());
    return fmt::format(
        "R1 of order {} turns the residual stream, which {} embeddings, linears and experts{} write and {} linears "
        "read",
        size, stream.writers.size(), images, stream.readers.size());
  }

  /// What to do without R1.
  std::string without_stream(const graph::Graph& graph) const {
    return advice(graph::value_heads(graph).heads.empty() ? kNeither : "; use rotations: [R2]");
  }

  /// The tensors that make the rows of images.
  rewrite::OutsideWriters image_writers(const rewrite::Model& model, const graph::ResidualStream& stream) const {
    if (stream.images.empty()) return {};
    std::string reason = "the model is in memory";
    try {
      if (model.image_writers != nullptr) return model.image_writers();
    } catch (const IoError& failure) {
      reason = failure.what();
    }
    throw VisionPartError(
        "[recipe.check] {}: R1 turns the residual stream, and with it what the vision part writes into it, but which "
        "of its weights do cannot be told ({}){}",
        where_, reason, without_stream(model.traced.graph));
  }

  /// A tensor that the graph does not read may belong to the stream, too.
  void refuse_unread(const rewrite::Model& model, std::int64_t width, const TurnedTensors& turned,
                     const std::set<std::string>& outside) const {
    const std::set<std::string> read = graph::weights_read(model.traced.graph);
    for (const std::string& name : model.checkpoint->names()) {
      if (read.count(name) != 0 || turned.has(name) || outside.count(name) != 0) continue;
      const std::vector<std::int64_t>& shape = model.checkpoint->spec(name).shape;
      if (std::find(shape.begin(), shape.end(), width) != shape.end())
        throw RecipeError(
            "[recipe.check] {}: {} has the residual stream's width {}, but the model's graph does not read it, so that "
            "R1 could leave it wrong{}",
            where_, name, width, advice("; use rotations: [R2], or remove the tensor"));
    }
  }

  /// R2. Returns a few words.
  std::string turn_heads(const graph::Graph& graph, TurnedTensors& turned) const {
    const graph::AllValueHeads all = graph::value_heads(graph);
    if (all.heads.empty())
      throw RecipeError("[recipe.check] {}: R2 turns the values of attentions, but {}{}", where_,
                        all.others.empty() ? "the model's graph has none of a form that it knows"
                                           : fmt::format("{}: {}", graph.module_name(graph.nodes[all.others[0].first]),
                                                         all.others[0].second),
                        advice(graph::residual_stream(graph).hindrance.empty() ? "; use rotations: [R1]" : kNeither));
    std::map<std::int64_t, HadamardPtr> matrices;
    for (const graph::ValueHeads& heads : all.heads) {
      HadamardPtr& matrix = matrices[heads.head_dim];
      if (matrix == nullptr) matrix = matrix_of(heads.head_dim, "R2", "use rotations: [R1]");
      const auto& linear = std::get<graph::Linear>(graph.nodes[heads.linear].operation);
      std::vector<kernels::MatrixRotation::Run> rows;
      for (const graph::ValueHeads::Rows& run : heads.rows) rows.push_back({run.first, run.count});
      turned.turn_rows(heads.linear, linear.weight, matrix, rows);
      if (!linear.bias.empty()) turned.turn_rows(heads.linear, linear.bias, matrix, rows);
      for (const graph::NodeId reader : heads.readers)
        turned.turn_columns(reader, std::get<graph::Linear>(graph.nodes[reader].operation).weight, matrix);
    }
    std::string text =
        fmt::format("R2 of order {} turns the values of {} attentions", all.heads.front().head_dim, all.heads.size());
    if (!all.others.empty())
      text += fmt::format(", and not of {} others ({}: {})", all.others.size(),
                          graph.module_name(graph.nodes[all.others[0].first]), all.others[0].second);
    return text;
  }

  std::string where_;
  bool turns_stream_ = false, turns_heads_ = false;
  bool where_possible_ = false;  // a rotation that the model does not allow is left out
  Hadamard::Seeded seeded_ = Hadamard::Seeded::kNot;
  std::int64_t block_ = 0;  // 0: the whole width
};

}  // namespace

/// SpinQuant's rotations that parameters absorb (Liu et al. 2024, arXiv 2405.16406; the matrices are Hadamard's, as in QuaRot, Ashkboos
/// et al. 2024, arXiv 2404.00456): R1 of the residual stream, R2 of the values' heads. It is a rewrite::Rewrite. Throws RecipeError.
Kind spinquant_modifier() { return {"SpinQuantModifier", make<SpinQuantModifier>, kSpinQuantArguments}; }

}  // namespace layerpress::modifier
