#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace layerpress::verification {

/// What is wrong with a checkpoint, or may be.
struct Finding {
  bool fault = false;  ///< else a warning: readers get by with it, or it may be meant
  std::string check;   ///< a word: "scale", "config", ...
  std::string where;   ///< the tensor or module
  std::string what;
};

class Findings {
 public:
  /// Once, however often it is found.
  void fault(const std::string& check, const std::string& where, const std::string& what) {
    const auto is_same = [&](const Finding& known) {
      return known.fault && known.check == check && known.where == where && known.what == what;
    };
    if (std::none_of(all_.begin(), all_.end(), is_same)) all_.push_back({true, check, where, what});
  }
  void warning(const std::string& check, const std::string& where, const std::string& what) {
    all_.push_back({false, check, where, what});
  }

  /// Makes warnings of the faults of some checks in some places.
  void excuse(const std::set<std::string>& checks, const std::set<std::string>& places, const std::string& why) {
    for (Finding& finding : all_)
      if (finding.fault && checks.contains(finding.check) && places.contains(finding.where))
        finding.fault = false, finding.what += "; " + why;
  }

  const std::vector<Finding>& all() const { return all_; }

 private:
  std::vector<Finding> all_;
};

}  // namespace layerpress::verification
