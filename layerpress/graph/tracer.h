#pragma once

#include <string>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A symbolic value: what model code computes with while it is traced.
struct Symbol {
  ValueId id = -1;
  std::int64_t features = 0;
};

/// Records a model's forward pass. Model code is written as one writes the forward pass, over symbols:
///
///   auto layer = tracer.module("layers.0", "LlamaDecoderLayer");   // names are relative to the modules around
///   auto h = tracer.rms_norm("input_layernorm", x, config.rms_norm_eps);
///   auto q = tracer.linear("q_proj", h, heads * head_dim);
///
/// Leaf modules (Linear, norms, embeddings) are made by the calls themselves. Weight names are `<module>.weight`.
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

  /// Enters module `name` (relative, may contain dots) of class `class_name` until the scope ends.
  [[nodiscard]] Scope module(const std::string& name, const std::string& class_name);
  std::int64_t add_rope_table(RopeTable table);

  Symbol tokens() const { return {Graph::kInput, 0}; }
  Symbol embedding(const std::string& name, Symbol ids, std::int64_t vocabulary, std::int64_t features);
  struct LinearOptions {
    bool bias = false;
    std::string tied_weight;  ///< full name of another module's weight to use instead of `<module>.weight`
  };
  Symbol linear(const std::string& name, Symbol x, std::int64_t out_features) {
    return linear(name, x, out_features, LinearOptions{});
  }
  Symbol linear(const std::string& name, Symbol x, std::int64_t out_features, const LinearOptions& options);
  /// Normalizes runs of `size` features; 0 means the whole row.
  Symbol rms_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon,
                  std::int64_t size = 0);
  Symbol rotary(Symbol x, std::int64_t head_dim, std::int64_t table);
  Symbol attention(Symbol q, Symbol k, Symbol v, const Attention& attributes);
  Symbol gated_activation(const std::string& function, Symbol gate, Symbol up);
  Symbol add(Symbol a, Symbol b);

  /// The finished graph, linted. The tracer is empty afterwards.
  Graph finish(Symbol output);

 private:
  ModuleId enter(const std::string& name, const std::string& class_name);
  std::string full_name(const std::string& name) const;
  Symbol record(Operation operation, std::vector<ValueId> inputs, std::int64_t features, ModuleId module);

  Graph graph_;
  ModuleId current_ = 0;
};

}  // namespace layerpress::graph
