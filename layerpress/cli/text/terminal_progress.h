#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "layerpress/base/progress.h"

namespace layerpress::cli {

/// Shows events on stderr. On a terminal: two bars that are redrawn in place (the model, and the phase of the current
/// subgraph with tokens/s and the remaining time). Otherwise: plain lines, one a minute, and at the level debug one for every
/// step.
class TerminalProgress : public EventSink {
 public:
  TerminalProgress(LogLevel level, bool bars);
  ~TerminalProgress() override;

  void on_message(LogLevel level, const std::string& text) override;
  void on_step(std::uint64_t done, std::uint64_t total, const std::string& step) override;
  void on_phase(const std::string& phase, std::uint64_t done, std::uint64_t total) override;

 private:
  void draw();
  void erase();
  void print_step();
  std::string time_left() const;

  LogLevel level_;
  std::set<std::string> warnings_;  // each is printed once: runs that measure first read their data twice
  bool bars_;
  bool drawn_ = false;
  std::uint64_t step_done_ = 0, step_total_ = 0, phase_done_ = 0, phase_total_ = 0;
  std::uint64_t first_done_ = 0;  ///< steps that were done before the work of this run began
  std::string step_, phase_;
  Timer run_timer_, work_timer_, phase_timer_, draw_timer_, line_timer_;
};

}  // namespace layerpress::cli
