#pragma once

#include <exception>

#include "layerpress/base/error.h"
#include "layerpress/base/progress.h"
#include "layerpress/dist/group.h"

namespace layerpress::run {

/// The first rank reports events, and all ranks watch each other.
inline RunControl control_of(const RunControl& control, dist::Group& group) {
  if (group.size() == 1) return control;
  RunControl own = control;
  own.supervisor = &group;
  if (!group.is_first()) own.events = nullptr;
  return own;
}

/// Runs `function` and tells the other ranks if it throws.
template <typename Function>
auto run_together(dist::Group& group, Function&& function) {
  try {
    return function();
  } catch (const InterruptedError& error) {
    // The end of another rank can look like a stop request, because its launcher stops the others.
    if (!group.failure().empty()) group.check();
    group.fail(error.what(), dist::FailureKind::kOnRequest);
    throw;
  } catch (const DamagedWeightsError& error) {
    group.fail(error.what(), dist::FailureKind::kHopeless);
    throw;
  } catch (const std::exception& error) {
    group.fail(error.what());
    throw;
  }
}

}  // namespace layerpress::run
