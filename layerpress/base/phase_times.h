#pragma once

#include <map>
#include <string>
#include <utility>

#include "layerpress/base/machine.h"
#include "layerpress/base/progress.h"

namespace layerpress {

/// Seconds and arithmetic by phase of a run. Phases do not nest: starting one inside another pauses the outer one.
class PhaseTimes {
 public:
  struct Phase {
    double seconds = 0;
    double flops = 0;                       ///< floating-point operations that the phase's algorithm needs
    double bytes = 0;                       ///< bytes read from or written to files
    std::uint64_t peak_resident_bytes = 0;  ///< largest resident set of the process when the phase last ended
  };

  /// Measures a phase until the end of the scope.
  class Scope {
   public:
    Scope(PhaseTimes& times, std::string name) : times_(times), outer_(times.running_) { times.start(std::move(name)); }
    ~Scope() { times_.start(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseTimes& times_;
    std::string outer_;
  };
  [[nodiscard]] Scope measure(const std::string& name) { return Scope(*this, name); }
  void add_flops(const std::string& name, double flops) { phases_[name].flops += flops; }
  void add_bytes(const std::string& name, double bytes) { phases_[name].bytes += bytes; }
  const std::map<std::string, Phase>& phases() const { return phases_; }

 private:
  void start(std::string name) {
    if (!running_.empty()) {
      phases_[running_].seconds += since_.seconds();
      phases_[running_].peak_resident_bytes = layerpress::peak_resident_bytes();
    }
    running_ = std::move(name);
    since_ = Timer();
  }
  std::map<std::string, Phase> phases_;
  std::string running_;
  Timer since_;
};

}  // namespace layerpress
