#include "layerpress/cli/text/terminal_progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "layerpress/base/error.h"
#include "layerpress/cli/text/style.h"

namespace layerpress::cli {
namespace {

constexpr std::array kLevelNames = {"debug", "info", "warning", "error"};

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

std::string bar(std::uint64_t done, std::uint64_t total) {
  constexpr std::uint64_t kWidth = 24;
  const std::uint64_t filled = total == 0 ? 0 : std::min(kWidth, kWidth * done / total);
  return fmt::format("[{:#<{}}{:.<{}}]", "", filled, "", kWidth - filled);
}

std::string clock_text(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// Pads or cuts a line so that it never wraps, because a wrapped line could not be redrawn in place.
std::string fitted(std::string line) {
  line.resize(std::min(line.size(), terminal_columns() - 1));
  return line;
}

}  // namespace

TerminalProgress::TerminalProgress(LogLevel level, bool bars) : level_(level), bars_(bars && isatty(STDERR_FILENO)) {}

TerminalProgress::~TerminalProgress() { erase(); }

void TerminalProgress::erase() {
  // Clears both lines and leaves the cursor where the first one was.
  if (drawn_) say("\r\x1b[2K\x1b[1A\r\x1b[2K");
  drawn_ = false;
}

/// What is left at the speed of the steps that this run has done itself.
std::string TerminalProgress::time_left() const {
  if (step_total_ <= first_done_) return "";
  const double phase =
      phase_total_ == 0 ? 0 : 0.9 * static_cast<double>(phase_done_) / static_cast<double>(phase_total_ * 4);
  const double share =
      (static_cast<double>(step_done_ - first_done_) + phase) / static_cast<double>(step_total_ - first_done_);
  const double elapsed = work_timer_.seconds();
  return share > 0.02 ? clock_text(elapsed / share - elapsed) + " left" : "";
}

void TerminalProgress::draw() {
  const std::string first = fitted(fmt::format("model {} {}/{} {} {} {}", bar(step_done_, step_total_), step_done_,
                                               step_total_, clock_text(run_timer_.seconds()), time_left(), step_));
  const double seconds = phase_timer_.seconds();
  const std::string rate = phase_done_ > 0 && seconds > 0.05 && phase_total_ > 1
                               ? fmt::format("{:.0f} tokens/s", static_cast<double>(phase_done_) / seconds)
                               : "";
  const std::string second =
      fitted(fmt::format("{:>5} {} {}", "", bar(phase_done_, phase_total_), phase_.empty() ? "" : phase_ + " " + rate));
  erase();
  say(first + "\n" + second);
  drawn_ = true;
  draw_timer_ = Timer();
}

void TerminalProgress::on_message(LogLevel level, const std::string& text) {
  if (level < level_ || (level == LogLevel::kWarning && !warnings_.insert(text).second)) return;
  erase();
  const std::string name = kLevelNames[static_cast<std::size_t>(level)];
  const std::string head = level == LogLevel::kWarning ? styled(name + ":", Style::kYellow, STDERR_FILENO)
                           : level == LogLevel::kError ? styled(name + ":", Style::kRed, STDERR_FILENO)
                                                       : name + ":";
  say(head + " " + one_line(text) + "\n");
}

/// A line for logs, where bars would be in the way.
void TerminalProgress::print_step() {
  constexpr double kSecondsBetweenLines = 60;
  if (level_ > LogLevel::kInfo || step_total_ == 0) return;
  if (level_ == LogLevel::kInfo && line_timer_.seconds() < kSecondsBetweenLines) return;
  line_timer_ = Timer();
  const std::string left = time_left();
  say(fmt::format("info: {}/{} {} ({}{})\n", step_done_ + 1, step_total_, step_, clock_text(run_timer_.seconds()),
                  left.empty() ? "" : ", " + left));
}

void TerminalProgress::on_step(std::uint64_t done, std::uint64_t total, const std::string& step) {
  // What was prepared, or finished by an earlier run, says nothing about the time that is left.
  if (done != step_done_ + 1) {
    first_done_ = done;
    work_timer_ = Timer();
  }
  step_done_ = done, step_total_ = total, step_ = step;
  phase_.clear();
  phase_done_ = phase_total_ = 0;
  if (done >= total) return erase();
  if (bars_) return draw();
  print_step();
}

void TerminalProgress::on_phase(const std::string& phase, std::uint64_t done, std::uint64_t total) {
  if (phase != phase_ || done < phase_done_) phase_timer_ = Timer();
  phase_ = phase, phase_done_ = done, phase_total_ = total;
  if (bars_ && draw_timer_.seconds() > 0.1) return draw();
  if (!bars_ && level_ == LogLevel::kInfo) print_step();
}

}  // namespace layerpress::cli
