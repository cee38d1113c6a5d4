#pragma once

#include <string>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A symbolic value, with which model code computes while it is traced.
struct Symbol {
  ValueId id = -1;
  std::int64_t features = 0;
  Rows rows = Rows::kTokens;
};

/// Records a model's forward pass. Model code is written like a forward pass, over symbols:
///
///   auto layer = tracer.module("layers.0", "LlamaDecoderLayer");   // names are relative to the enclosing modules
///   auto h = tracer.rms_norm("input_layernorm", x, config.rms_norm_eps);
///   auto q = tracer.linear("q_proj", h, heads * head_dim);
///
/// Leaf modules (Linear, norms, embeddings) are created by the calls themselves. Weight names are `<module>.weight`.
class Tracer {
 public:
  /// Leaves the module at the end of the scope.
  class Scope {
   public:
    Scope(Tracer& tracer, ModuleId inner) : tracer_(tracer), outer_(tracer.current_) { tracer.current_ = inner; }
    ~Scope() { tracer_.current_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tracer& tracer_;
    ModuleId outer_;
  };

  Tracer();

  /// Enters module `name` (relative, may contain dots) of class `class_name` until the end of the scope.
  [[nodiscard]] Scope module(const std::string& name, const std::string& class_name);
  std::int64_t add_rope_table(RopeTable table);

  Symbol tokens() const { return {Graph::kInput, 0}; }
  /// An input other than the token ids. REQUIRES: nothing was recorded yet.
  Symbol input(std::int64_t features, Rows rows);
  /// An operation without a method of its own, in the current module.
  Symbol operation(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, Rows rows);
  /// The full name of `name` in the current module.
  std::string full_name(const std::string& name) const;
  Symbol embedding(const std::string& name, Symbol ids, std::int64_t vocabulary, std::int64_t features);
  struct LinearOptions {
    bool bias = false;
    std::string tied_weight{};  ///< full name of another module's weight to use instead of `<module>.weight`
    std::string class_name = "Linear";
  };
  Symbol linear(const std::string& name, Symbol x, std::int64_t out_features) {
    return linear(name, x, out_features, LinearOptions{});
  }
  Symbol linear(const std::string& name, Symbol x, std::int64_t out_features, const LinearOptions& options);
  /// Normalizes `size` consecutive features; 0 means the whole row.
  Symbol rms_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon,
                  std::int64_t size = 0);
  /// `attributes` has no weight name; its size is 0 for the whole row.
  Symbol rms_norm(const std::string& name, const std::string& class_name, Symbol x, RmsNorm attributes);
  /// Normalizes the whole row.
  Symbol layer_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon, bool bias = true);
  Symbol rotary(Symbol x, std::int64_t head_dim, std::int64_t table);
  Symbol rotary(Symbol x, const Rotary& attributes);
  Symbol attention(Symbol q, Symbol k, Symbol v, const Attention& attributes);
  Symbol gated_activation(const std::string& function, Symbol gate, Symbol up);
  Symbol add(Symbol a, Symbol b);
  Symbol gate(Symbol a, Symbol b);
  Symbol scale(Symbol x, const Scale& attributes);
  Symbol soft_cap(Symbol x, double cap);
  Symbol slice(Symbol x, const Slice& attributes);
  Symbol join_heads(Symbol a, Symbol b, std::int64_t heads);
  Symbol route(Symbol logits, const Route& attributes);
  struct ExpertNames {
    std::string class_name;  ///< of each expert
    std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  };
  /// Module `name` with a child module 0, 1, ... per expert (see operations/experts.h).
  Symbol experts(const std::string& name, Symbol x, Symbol logits, Symbol routing, std::int64_t intermediate,
                 const std::string& function, const ExpertNames& names);

  /// The finished graph, linted. The tracer is empty afterwards.
  Graph finish(Symbol output);

 private:
  ModuleId enter(const std::string& name, const std::string& class_name);
  Symbol record(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, ModuleId module);
  Symbol record(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, Rows rows,
                ModuleId module);

  Graph graph_;
  ModuleId current_ = 0;
};

}  // namespace layerpress::graph
