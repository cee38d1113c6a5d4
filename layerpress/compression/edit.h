#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/kernels/solver/sparsify.h"

namespace layerpress::compression {

/// The outcome of an edit for one weight.
struct EditedWeight {
  at::Tensor weight;             ///< [rows, columns] in the given dtype, in memory of its own
  bool keeps_zeros = false;      ///< as in LinearWeight, for the steps that follow
  std::optional<double> loss{};  ///< sum over rows of (w - edited) H (w - edited)ᵀ, if the edit knows it
  std::string fallback{};        ///< as in ModuleReport
};

/// A change of weights that leaves them dense, before they are encoded: a function of rows, statistics and the places that stay zero.
/// It knows nothing of recipes, ranks, devices or files.
class Edit {
 public:
  virtual ~Edit() = default;

  /// The type of the modifier that made it.
  virtual std::string type() const = 0;
  /// What it does in a few words, such as "2:4 sparse", for reports.
  virtual std::string describe() const = 0;
  /// The pattern of the zeros that it leaves; without groups if engines could not use it.
  virtual kernels::SparsePattern pattern() const { return {}; }
  /// Whether the zeros that a weight has already say where it stays zero. Nothing may then fill them before.
  virtual bool reads_zeros() const { return false; }
  /// As Quantizer::wants_original.
  virtual bool wants_original() const { return false; }
  /// The statistics that it wants of a value which edited linears read.
  virtual std::vector<StatisticPtr> statistics_wanted(const ValueFacts& facts) const = 0;
  /// As Quantizer::row_step.
  virtual std::int64_t row_step(const LinearShape& linear) const = 0;
  /// Memory and arithmetic of edit(); its results are the edited weights.
  virtual CompressionCost cost(const std::vector<LinearShape>& linears) const = 0;

  /// Edits linears that read one value; one result per linear, in order. Where LinearWeight::keeps_zeros is set, zeros stay zeros.
  virtual std::vector<EditedWeight> edit(const std::vector<LinearWeight>& linears, const Statistics* statistics,
                                         PhaseTimes& times) const = 0;
};

using EditPtr = std::shared_ptr<const Edit>;

/// A module of a model, for modifiers that choose among all of them.
struct ModelModule {
  quant::ModuleName name;
  bool is_linear = false;
  std::int64_t columns = 0;  ///< of a linear's weight
  bool is_tied = false;      ///< a head that shares the embedding's weight
};

/// An entry of a recipe that edits weights.
class EditingModifier : public Modifier {
 public:
  /// The edits of the linears that it edits, by module name; linears with one edit share the object. `modules`: those of the model,
  /// in order. Throws RecipeError naming the module for what it cannot edit.
  virtual std::map<std::string, EditPtr> edits_of(const std::vector<ModelModule>& modules) const = 0;
  /// Whether weights become zero, and whether those that do not may change, too.
  virtual bool prunes() const { return true; }
  virtual bool moves() const { return false; }
  /// Whether a model without a linear to edit is right, too.
  virtual bool may_edit_nothing() const { return false; }
};

}  // namespace layerpress::compression
