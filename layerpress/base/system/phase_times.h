#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/base/system/machine.h"

namespace layerpress {

/// Seconds and arithmetic by phase of a run. Phases do not nest: starting one inside another pauses the outer one.
class PhaseTimes {
 public:
  struct Phase {
    double seconds = 0;
    double flops = 0;                       ///< floating-point operations that the phase's algorithm needs
    std::uint64_t peak_resident_bytes = 0;  ///< largest resident set of the process when the phase last ended
  };

  /// A part of the run, such as a subgraph, with the seconds of its phases.
  struct Section {
    std::string name;
    double start = 0;  ///< seconds since the construction
    double seconds = 0;
    std::map<std::string, double> phases{};
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
  const std::map<std::string, Phase>& phases() const { return phases_; }

  /// Ends the section before, if there is one. Phases outside of sections count for the run only.
  void begin_section(const std::string& name) {
    end_section();
    sections_.push_back({name, since_});
    in_section_ = true;
  }
  void end_section() {
    start(std::string(running_));  // what has passed of the phase belongs to the section
    if (in_section_) sections_.back().seconds = since_ - sections_.back().start;
    in_section_ = false;
  }
  const std::vector<Section>& sections() const { return sections_; }

 private:
  /// One reading of the clock ends what is running and begins what follows, so that no time is lost between them.
  void start(std::string name) {
    const double now = clock_.seconds();
    if (!running_.empty()) {
      const double seconds = now - since_;
      phases_[running_].seconds += seconds;
      if (in_section_) sections_.back().phases[running_] += seconds;
      phases_[running_].peak_resident_bytes = layerpress::peak_resident_bytes();
    }
    running_ = std::move(name);
    since_ = now;
  }
  std::map<std::string, Phase> phases_;
  std::string running_;
  Timer clock_;
  double since_ = 0;  ///< when the running phase, or what comes between phases, began
  std::vector<Section> sections_;
  bool in_section_ = false;
};

}  // namespace layerpress
