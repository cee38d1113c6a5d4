#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include "layerpress/base/system/control_group.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/base/system/process_status.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;
constexpr double kNone = std::numeric_limits<double>::infinity();

std::string read_small_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// File pages of a group, which the kernel drops when memory runs short. v1 includes the child groups in "total_"
/// lines.
double droppable_bytes(const fs::path& stat) {
  std::map<std::string, double> counts;
  std::ifstream file(stat);
  std::string name;
  for (double count; file >> name >> count;) counts[name] = count;
  double sum = 0;
  for (const std::string list : {"inactive_file", "active_file"})
    sum += counts.count("total_" + list) != 0 ? counts["total_" + list] : counts[list];
  return sum;
}

double left_under(double limit, const fs::path& group, const char* usage) {
  if (!std::isfinite(limit)) return kNone;
  const double used = number_or(first_line(group / usage), 0) - droppable_bytes(group / "memory.stat");
  return limit - std::max(0.0, used);
}

double left_in_groups(const fs::path& proc, const fs::path& groups) {
  double left = kNone;
  for (const fs::path& group : control_group_levels(proc, groups, ""))
    // Above memory.high the kernel throttles the process so much that it is effectively a limit.
    for (const char* limit : {"memory.max", "memory.high"})
      left = std::min(left, left_under(number_or(first_line(group / limit), kNone), group, "memory.current"));
  constexpr double kUnlimited = 1e18;  // v1 expresses "no limit" as the largest page multiple
  for (const fs::path& group : control_group_levels(proc, groups, "memory")) {
    const double limit = number_or(first_line(group / "memory.limit_in_bytes"), kNone);
    left = std::min(left, left_under(limit < kUnlimited ? limit : kNone, group, "memory.usage_in_bytes"));
  }
  return left;
}

/// The soft limit in a line such as "Max data size   1048576   unlimited   bytes" of /proc/self/limits.
double soft_limit(const std::string& limits, std::string_view name) {
  const std::size_t at = limits.find(name);
  if (at == std::string::npos) return kNone;
  const char* text = limits.c_str() + at + name.size();
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  return end == text ? kNone : value;
}

double left_by_ulimit(const fs::path& proc) {
  const std::string limits = read_small_file(proc / "self" / "limits");
  const std::string status = read_small_file(proc / "self" / "status");
  const auto used = [&](const char* name) { return static_cast<double>(status_bytes(status, name).value_or(0)); };
  return std::min(soft_limit(limits, "Max address space") - used("VmSize"),
                  soft_limit(limits, "Max data size") - used("VmData"));
}

}  // namespace

std::optional<std::uint64_t> status_bytes(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const std::size_t colon = at + name.size();
    if ((at > 0 && text[at - 1] != '\n') || colon >= text.size() || text[colon] != ':') continue;
    const std::string figure(text.substr(colon + 1, 32));
    return std::strtoull(figure.c_str(), nullptr, 10) * 1024;
  }
  return std::nullopt;
}

std::uint64_t anonymous_bytes_in(std::string_view status) {
  return status_bytes(status, "RssAnon").value_or(0) + status_bytes(status, "RssShmem").value_or(0);
}

std::uint64_t anonymous_bytes() { return anonymous_bytes_in(read_small_file("/proc/self/status")); }

void return_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

std::uint64_t peak_resident_bytes() {
  // getrusage counts what the process was before it became this program, too. The kernel's figure may fall by a few pages.
  static std::atomic<std::uint64_t> largest = 0;
  const std::uint64_t now = status_bytes(read_small_file("/proc/self/status"), "VmHWM").value_or(0);
  std::uint64_t before = largest;
  while (before < now && !largest.compare_exchange_weak(before, now)) {
  }
  return std::max(before, now);
}

std::uint64_t available_memory(const fs::path& proc, const fs::path& groups) {
  const auto machine = status_bytes(read_small_file(proc / "meminfo"), "MemAvailable");
  double available = machine ? static_cast<double>(*machine) : kNone;
  available = std::min({available, left_in_groups(proc, groups), left_by_ulimit(proc)});
  if (!std::isfinite(available)) return 0;
  return static_cast<std::uint64_t>(std::max(1.0, available));  // 0 means unknown
}

std::uint64_t available_memory() { return available_memory("/proc", "/sys/fs/cgroup"); }

}  // namespace layerpress
