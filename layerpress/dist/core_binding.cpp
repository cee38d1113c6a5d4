#include "layerpress/dist/core_binding.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "layerpress/dist/division.h"

namespace layerpress::dist {
namespace {

/// Seconds for which the calling thread could run and no core was free; 0 where the kernel does not count them.
double delay_of_thread() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t running = 0, waiting = 0;  // nanoseconds
  return file >> running >> waiting ? static_cast<double>(waiting) * 1e-9 : 0;
}

/// Threads of this process at the moment.
std::vector<int> threads_now() {
  std::vector<int> threads;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failure))
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  return threads;
}

}  // namespace

std::vector<int> own_cores(const std::vector<Peer>& peers, const Peer& own, int usable) {
  const std::vector<int> ranks = ranks_of_machine(peers, own);
  const std::size_t cores = own.cores.size();
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    const Peer& other = peers[static_cast<std::size_t>(rank)];
    return other.cores == own.cores && (rank == own.rank || other.process != own.process);
  });
  if (ranks.size() < 2 || !alike || cores < ranks.size() || usable < static_cast<int>(cores)) return {};
  const auto place = std::find(ranks.begin(), ranks.end(), own.rank) - ranks.begin();
  const Slice share =
      partition(static_cast<std::int64_t>(cores), static_cast<int>(place), static_cast<int>(ranks.size()));
  return {own.cores.begin() + share.first, own.cores.begin() + share.last};
}

CoreBinding::CoreBinding(const std::vector<int>& cores) : delay_(delay_of_thread()) {
  if (::sched_getaffinity(0, sizeof(usual_), &usual_) != 0) return;
  holds_ = true;
  cpu_set_t own;
  CPU_ZERO(&own);
  for (const int core : cores) CPU_SET(core, &own);
  for (const int thread : threads_now())
    if (cpu_set_t before; ::sched_getaffinity(thread, sizeof(before), &before) == 0) {
      before_.emplace(thread, before);
      ::sched_setaffinity(thread, sizeof(own), &own);
    }
}

CoreBinding::~CoreBinding() { release(); }

void CoreBinding::release() {
  if (!holds_) return;
  holds_ = false;
  for (const int thread : threads_now()) {
    const auto found = before_.find(thread);
    ::sched_setaffinity(thread, sizeof(usual_), found != before_.end() ? &found->second : &usual_);
  }
}

void CoreBinding::release_if_crowded(double period) {
  const double passed = since_.seconds();
  if (!holds_ || passed < period) return;
  const double delay = delay_of_thread();
  if (delay - delay_ > 0.2 * passed) release();
  since_ = {};
  delay_ = delay;
}

}  // namespace layerpress::dist
