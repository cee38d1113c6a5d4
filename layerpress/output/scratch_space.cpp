#include "layerpress/output/scratch_space.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <system_error>

#include "layerpress/base/text.h"
#include "layerpress/dist/peers.h"

namespace layerpress::output {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_on_disk(const setup::RunSetup& setup, const plan::RunPlan& plan) {
  std::uint64_t needed = 0, boundary = 0;
  for (const plan::SubgraphPlan& subgraph : plan.memory.subgraphs)
    needed = std::max(needed, subgraph.activation_disk_bytes);
  if (needed == 0) return 0;
  // The values after a subgraph stay until those after the next one are safe.
  for (const schedule::SubgraphSchedule& subgraph : plan.schedule) {
    std::uint64_t elements = 0;
    for (const graph::ValueId id : subgraph.boundary) {
      const graph::Graph& graph = setup.model.traced.graph;
      const graph::Value& value = graph.values[graph::OriginalStream::value_of(graph, id)];
      for (const execution::Batch& batch : plan.batches)
        elements += static_cast<std::uint64_t>(batch.rows(value.rows) * value.features);
    }
    boundary = std::max(boundary, elements * c10::elementSize(setup.placement.dtype));
  }
  return needed + boundary;
}

/// A name that is the same for ranks that write to one disk.
std::string name_of_disk(const fs::path& folder, bool shared) {
  if (shared) return "shared";
  struct stat status {};
  const std::string host = dist::host_name();
  return ::stat(folder.c_str(), &status) == 0 ? fmt::format("{} {}", host, status.st_dev) : host;
}

}  // namespace

void require_scratch_space(const setup::RunSetup& setup, const plan::RunPlan& plan, const fs::path& scratch,
                           bool shared, dist::Group& group, const RunControl& control) {
  const fs::path folder = scratch.parent_path();
  std::error_code failure;
  const std::uintmax_t found = fs::file_size(scratch, failure);
  const std::uint64_t used = failure ? 0 : found, own = bytes_on_disk(setup, plan);
  const std::string disk = name_of_disk(folder, shared);
  std::uint64_t needed = 0, reused = 0;
  for (const std::string& text : group.all_gather_text(Json{{"disk", disk}, {"needed", own}, {"used", used}}.dump())) {
    const Json rank = Json::parse(text);
    if (rank["disk"] != disk) continue;
    needed += rank["needed"].get<std::uint64_t>();
    reused += rank["used"].get<std::uint64_t>();
  }
  if (own == 0) return;
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC)
    control.message(
        LogLevel::kWarning,
        fmt::format("{} is in memory, not on disk: no memory budget counts activations there", folder.string()));
  const fs::space_info space = fs::space(folder, failure);
  if (failure) return;
  const std::uintmax_t available = space.available + reused;
  if (available < needed)
    throw MemoryError(
        "[plan] activations{} need {} on disk, {} has {} free; choose another --offload-dir, or use fewer samples or a "
        "larger --memory-budget",
        group.size() > 1 ? " of all ranks" : "", format_bytes(needed), folder.string(), format_bytes(available));
}

}  // namespace layerpress::output
