#include "layerpress/base/system/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <system_error>

#include "layerpress/base/system/control_group.h"
#include "layerpress/base/text.h"

namespace layerpress {
namespace fs = std::filesystem;

double cpu_quota(const fs::path& proc, const fs::path& groups) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double cores = kNone;
  for (const fs::path& group : control_group_levels(proc, groups, "")) {
    std::istringstream unified(first_line(group / "cpu.max"));
    std::string quota, period;
    if (unified >> quota >> period) cores = std::min(cores, number_or(quota, kNone) / number_or(period, 100000));
  }
  for (const fs::path& group : control_group_levels(proc, groups, "cpu")) {
    const double quota = number_or(first_line(group / "cpu.cfs_quota_us"), -1);
    if (quota > 0) cores = std::min(cores, quota / number_or(first_line(group / "cpu.cfs_period_us"), 100000));
  }
  return cores;
}

std::vector<int> one_per_core(const std::vector<int>& processors, const fs::path& system) {
  std::vector<int> cores;
  std::set<std::string> seen;
  for (const int processor : processors) {
    // The hardware threads of a core name the same ones. Without the file, each is taken for a core.
    const std::string threads =
        first_line(system / ("cpu" + std::to_string(processor)) / "topology" / "thread_siblings_list");
    if (threads.empty() || seen.insert(threads).second) cores.push_back(processor);
  }
  return cores;
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  return one_per_core(processors, "/sys/devices/system/cpu");
}

int usable_cores() {
  const auto allowed = static_cast<double>(allowed_cores().size());
  return std::max(1, static_cast<int>(std::min(allowed, std::ceil(cpu_quota("/proc", "/sys/fs/cgroup")))));
}

int usual_threads() {
  constexpr double kMost = 1 << 16;
  const double threads = number_or(environment_variable("OMP_NUM_THREADS"), 0);
  return threads >= 1 && threads <= kMost ? static_cast<int>(threads) : usable_cores();
}

std::string executable_directory() {
  std::error_code failure;
  return fs::read_symlink("/proc/self/exe", failure).parent_path().string();
}

}  // namespace layerpress
