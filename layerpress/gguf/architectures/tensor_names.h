#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace layerpress::gguf {

/// Of a matrix whose rows are `parts` equal parts: `count` rows of each, from `first` on. A count of 0 means all rows.
struct RowRange {
  std::int64_t parts = 1;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};

/// Heads that change places: in a checkpoint the `of_key` heads of a key follow each other; in a GGUF the first heads of all keys
/// come first, then the second ones.
struct TiledHeads {
  std::int64_t keys = 0;  ///< 0: the heads stay
  std::int64_t of_key = 1;
  std::int64_t first = 0;  ///< rows before the heads, which stay
  std::int64_t count() const { return keys * of_key; }
  bool operator==(const TiledHeads&) const = default;
};

/// A tensor of a GGUF that a checkpoint's tensor goes to, and what becomes of its values on the way, in the order of the members.
/// For a stacked tensor [experts, rows, columns] this happens to every matrix.
struct TensorPlace {
  std::string name;                      ///< in the GGUF
  std::optional<std::int64_t> expert{};  ///< the tensor becomes this matrix of a stack
  bool transposed_first = false;         ///< rows and columns change places
  RowRange rows{};                       ///< only these rows are taken
  bool stacked_parts = false;            ///< the parts of `rows` become the matrices of a stack [parts, count, columns]
  bool transposed_last = false;          ///< rows and columns (of each matrix) change places
  std::int64_t paired_heads = 0;         ///< rows are this many heads; the halves of each are interleaved, row by row
  TiledHeads tiled_rows{};
  TiledHeads tiled_columns{};
  float added = 0;                    ///< to every value
  bool negative_exponential = false;  ///< x becomes -exp(x)
  bool squeezed = false;              ///< dimensions of size 1 vanish
};

/// The name that a tensor has in a checkpoint that holds a language model only: "model.layers..." of "model.language_model.layers...".
std::string text_name(std::string name);

/// Where a checkpoint's tensor goes: to one place or several, or nowhere for a reason.
struct Placement {
  std::vector<TensorPlace> places{};
  std::string left_out{};  ///< the reason, if there are no places
};

/// A tensor of a checkpoint that a GGUF's tensor becomes, or a part of it.
struct Origin {
  std::string name;
  TensorPlace place;
};

/// The names of a family's tensors. Names of checkpoints have # for the numbers of a layer and of an expert; names of GGUFs have #
/// for the layer: "model.layers.#.mlp.experts.#.up_proj" goes to "blk.#.ffn_up_exps".
class TensorNames {
 public:
  /// A module's weight, or a tensor whose name ends otherwise ("...A_log", "blk.#.ssm_a"). A second line for a name adds a place.
  void add(const std::string& name, TensorPlace place);
  void add(const std::string& name, const std::string& place) { add(name, TensorPlace{.name = place}); }
  /// The module's weight and bias.
  void add_with_bias(const std::string& name, TensorPlace place);
  /// A tensor or module that has no place, and why.
  void leave_out(const std::string& name, const std::string& reason) { left_out_[name] = reason; }
  /// Adds a number to all values of a module's weight.
  void set_added(const std::string& name, float added);
  /// llama.cpp multiplies what the weights of these places, "blk.#.attn_q", give by a number beside them, "blk.#.attn_q.scale". Of
  /// experts it is one each.
  void add_scales(const std::vector<std::string>& places) { scaled_.insert(places.begin(), places.end()); }
  /// Whether it does so with a weight of a GGUF, "blk.0.attn_q.weight".
  bool has_scale(const std::string& tensor) const;
  void leave_out_layers_from(std::int64_t layer) { num_layers_ = layer; }

  /// The placement of a checkpoint's tensor. Throws CheckpointError if it has none.
  Placement find(const std::string& name) const;

  /// The other direction: what a tensor of a GGUF becomes, several tensors if it stacks `experts`. Of several names that families
  /// have for one tensor, that which was added first. Nothing if the family has no such tensor.
  std::vector<Origin> origins(const std::string& tensor, std::int64_t experts) const;

 private:
  struct Rule {
    TensorPlace place;
    bool bias = false;  ///< the module's bias has a place, too
  };
  std::vector<Rule>& rules_for(const std::string& name);
  /// Whether a rule's module has a tensor of this suffix.
  bool has(const Rule& rule, std::string_view suffix) const;
  std::map<std::string, std::vector<Rule>> rules_;
  std::vector<std::string> order_;  ///< of names, as they were added
  std::map<std::string, std::string> left_out_;
  std::set<std::string> scaled_;  ///< places
  std::int64_t num_layers_ = 0;
};

}  // namespace layerpress::gguf
