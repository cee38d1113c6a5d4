#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// The device and the precision of the computation.
struct Placement {
  at::Device device = at::kCPU;  ///< a GPU with its index
  at::ScalarType dtype = at::kFloat;
};

/// Brings parameters to the computing device on first use, and releases them at the end of its lifetime. On a CPU, a
/// parameter of the computing dtype is a view of the mapped file; nothing is copied. Weights that are stored quantized are computed
/// once. Not thread-safe.
class Onload {
 public:
  Onload(const WeightSource& source, const std::vector<std::string>& names, const Placement& placement);
  ~Onload();
  Onload(const Onload&) = delete;
  Onload& operator=(const Onload&) = delete;

  /// The parameter in the computing dtype. Throws InternalError for a name that was not onloaded.
  const at::Tensor& parameter(const std::string& name) const;
  /// The parameter as stored, or as changed since then, in its own dtype on the computing device.
  at::Tensor original(const std::string& name) const;
  /// Sets the value of `name` from now on (compressed and dequantized again).
  void replace(const std::string& name, const at::Tensor& value);
  /// Sets the value of `name` back to what the source has, which is loaded again on first use.
  void reload(const std::string& name);
  /// Sets the parameter that parameter() and original() return from now on, in the stored dtype.
  void change(const std::string& name, const at::Tensor& value);
  /// Lets the values of a weight go that is stored quantized, until original() computes them again.
  void release_original(const std::string& name) { computed_.erase(name); }
  /// The value of a parameter, to restore it after change().
  struct Saved {
    at::Tensor parameter, changed;
  };
  Saved saved(const std::string& name) const;
  void restore(const std::string& name, Saved value);
  /// Whether change() was called and the parameter was not replaced since then.
  bool has_changed(const std::string& name) const { return changed_.count(name) != 0; }

 private:
  at::Tensor stored(const std::string& name) const;
  const WeightSource& source_;
  Placement placement_;
  mutable std::map<std::string, at::Tensor> parameters_;  // undefined until first used
  std::map<std::string, at::Tensor> changed_;             // until they are replaced
  mutable std::map<std::string, at::Tensor> computed_;    // that the source would compute again
};

}  // namespace layerpress::residency
