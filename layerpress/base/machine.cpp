#include "layerpress/base/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace layerpress {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Folder of this process's control group for a v1 controller, or the unified one when `controller` is "".
fs::path control_group(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  const std::string wanted = controller.empty() ? "0::" : ":" + controller + ":";
  for (std::string line; std::getline(file, line);) {
    const auto at = controller.empty() ? (line.rfind("0::", 0) == 0 ? 0 : std::string::npos) : line.find(wanted);
    if (at == std::string::npos) continue;
    const std::string relative = line.substr(at + wanted.size());
    const fs::path root = controller.empty() ? fs::path("/sys/fs/cgroup") : fs::path("/sys/fs/cgroup") / controller;
    const fs::path own = root.string() + relative;
    return fs::exists(own) ? own : root;  // inside a container the path names the host's tree
  }
  return {};
}

double number_or(const std::string& text, double otherwise) {
  if (text.empty() || text == "max") return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? otherwise : value;
}

double cpu_quota() {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::istringstream unified(first_line(control_group("") / "cpu.max"));
  std::string quota, period;
  if (unified >> quota >> period) return number_or(quota, kNone) / number_or(period, 100000);
  const fs::path old = control_group("cpu,cpuacct");
  const double old_quota = number_or(first_line(old / "cpu.cfs_quota_us"), -1);
  return old_quota > 0 ? old_quota / number_or(first_line(old / "cpu.cfs_period_us"), 100000) : kNone;
}

double memory_left_in_group() {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const fs::path unified = control_group("");
  const double limit = number_or(first_line(unified / "memory.max"), kNone);
  if (std::isfinite(limit)) return limit - number_or(first_line(unified / "memory.current"), 0);
  const fs::path old = control_group("memory");
  const double old_limit = number_or(first_line(old / "memory.limit_in_bytes"), kNone);
  return old_limit < 1e18 ? old_limit - number_or(first_line(old / "memory.usage_in_bytes"), 0) : kNone;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = std::ceil(cpu_quota());
  return std::max(1, quota < allowed ? static_cast<int>(quota) : allowed);
}

std::uint64_t available_memory() {
  double available = std::numeric_limits<double>::infinity();
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("MemAvailable:", 0) == 0) available = std::strtod(line.c_str() + 13, nullptr) * 1024;
  available = std::min(available, memory_left_in_group());
  return std::isfinite(available) && available > 0 ? static_cast<std::uint64_t>(available) : 0;
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
