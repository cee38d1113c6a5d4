#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// Where and in which precision computation happens.
struct Placement {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

/// Brings parameters to the computing device for the lifetime of the object and releases them at its end, each when it is
/// first used. On a CPU a parameter of the computing dtype is a view of the mapped file; nothing is copied. Not thread-safe.
class Onload {
 public:
  Onload(const WeightSource& source, const std::vector<std::string>& names, const Placement& placement);
  ~Onload();
  Onload(const Onload&) = delete;
  Onload& operator=(const Onload&) = delete;

  /// In the computing dtype. Throws InternalError for a name that was not onloaded.
  const at::Tensor& parameter(const std::string& name) const;
  /// The parameter as stored (its own dtype), on the computing device.
  at::Tensor original(const std::string& name) const;
  /// From now on `name` has this value (compressed and dequantized again).
  void replace(const std::string& name, at::Tensor value);

 private:
  const WeightSource& source_;
  Placement placement_;
  mutable std::map<std::string, at::Tensor> parameters_;  // undefined until first used
};

}  // namespace layerpress::residency
