#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::kernels {

/// An argument of a program's step: a constant, the value in a slot, or a list of arguments.
struct ProgramArgument {
  enum class Kind { kConstant, kSlot, kDevice, kList };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::int64_t slot = -1;
  bool as_tensor = false;                          ///< the operator wants a tensor, the slot may have a number
  c10::TypeKind element = c10::TypeKind::IntType;  ///< what a list holds
  std::vector<ProgramArgument> list;

  /// Calls visit(slot) for every slot that is read.
  void each_slot(const std::function<void(std::int64_t)>& visit) const;
  /// The value for a call. `slots` are those of the running program.
  c10::IValue value(const std::vector<c10::IValue>& slots, at::Device device) const;
};

/// Reads an argument of type `type` (null: any). `slot_of` gives the slot of a reference, or throws. Throws
/// CheckpointError for what no argument is.
ProgramArgument read_program_argument(const Json& json, const c10::Type* type,
                                      const std::function<std::int64_t(const Json& reference)>& slot_of);

}  // namespace layerpress::kernels
