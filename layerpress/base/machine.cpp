#include "layerpress/base/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "layerpress/base/control_group.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

double cpu_quota() {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const fs::path proc = "/proc", groups = "/sys/fs/cgroup";
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

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = std::ceil(cpu_quota());
  return std::max(1, quota < allowed ? static_cast<int>(quota) : allowed);
}

std::uint64_t peak_resident_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

std::string executable_directory() {
  std::error_code failure;
  return fs::read_symlink("/proc/self/exe", failure).parent_path().string();
}

}  // namespace layerpress
