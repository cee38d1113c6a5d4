#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "layerpress/base/error.h"
#include "layerpress/cli/commands.h"
#include "layerpress/distributed.h"

namespace layerpress::cli {

/// Does a subcommand's `work(ranks)`. Of several ranks only one reports an error; it calls `before_report(kind, ranks)`
/// first. Returns 0.
template <typename Work, typename Before>
int run_on_ranks(std::int64_t timeout, const RunControl& control, Work&& work, Before&& before_report) {
  const auto ranks = init_dist(std::chrono::seconds(timeout), control);
  const auto end = [&](ErrorKind kind, const std::string& message) {
    end_progress(control);
    const bool alone = ranks->size() == 1;
    if (!alone && !ranks->reports_failure()) throw QuietExit{exit_code(kind)};
    before_report(kind, *ranks);
    if (alone) return;
    const std::string failure = ranks->failure();
    throw Error(kind, failure.empty() ? message : failure);
  };
  try {
    work(*ranks);
    return 0;
  } catch (const Error& error) {
    end(error.kind(), error.what());
    throw;
  } catch (const std::exception& error) {
    end(ErrorKind::kInternal, error.what());
    throw;
  }
}

}  // namespace layerpress::cli
