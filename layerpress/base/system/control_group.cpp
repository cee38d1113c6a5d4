#include "layerpress/base/system/control_group.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace layerpress {
namespace {

namespace fs = std::filesystem;

/// The parts of a line of /proc/self/cgroup, "ID:CONTROLLERS:PATH".
struct Membership {
  std::string controllers;
  std::string path;
};

bool lists(const std::string& controllers, std::string_view wanted) {
  if (wanted.empty()) return controllers.empty();
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');)
    if (name == wanted) return true;
  return false;
}

Membership membership(const fs::path& proc, std::string_view controller) {
  std::ifstream file(proc / "self" / "cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (lists(controllers, controller)) return {controllers, line.substr(second + 1)};
  }
  return {};
}

/// The mount point of the tree. On machines with both versions, v2 has its own folder beside the v1 controllers.
fs::path tree_root(const fs::path& groups, std::string_view controller, const std::string& controllers) {
  if (controller.empty()) return fs::exists(groups / "cgroup.controllers") ? groups : groups / "unified";
  return fs::exists(groups / controllers) ? groups / controllers : groups / controller;
}

}  // namespace

std::vector<fs::path> control_group_levels(const fs::path& proc, const fs::path& groups, std::string_view controller) {
  const auto [controllers, path] = membership(proc, controller);
  if (path.empty()) return {};
  const fs::path root = tree_root(groups, controller, controllers);
  if (!fs::exists(root)) return {};
  // Inside a container the path may refer to the host's tree, of which only the container's part is mounted, as the
  // root.
  const fs::path below = fs::path(path).relative_path().lexically_normal();
  const bool visible = !below.empty() && *below.begin() != ".." && fs::exists(root / below);
  std::vector<fs::path> levels{root};
  if (visible)
    for (const fs::path& part : below)
      if (!part.empty() && part != ".") levels.push_back(levels.back() / part);
  std::reverse(levels.begin(), levels.end());
  return levels;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double number_or(const std::string& text, double otherwise) {
  if (text.empty() || text == "max") return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? otherwise : value;
}

}  // namespace layerpress
