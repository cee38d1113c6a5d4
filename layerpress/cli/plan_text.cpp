#include "layerpress/cli/plan_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "layerpress/base/duration.h"
#include "layerpress/base/text.h"
#include "layerpress/cli/wrapped_text.h"

namespace layerpress::cli {
namespace {

std::uint64_t number(const Json& object, const char* key) { return object[key].get<std::uint64_t>(); }

std::string bytes(const Json& object, const char* key) {
  const std::uint64_t count = number(object, key);
  return count == 0 ? "-" : format_bytes(count);
}

/// "1.21G" of 1.21 GiB.
std::string compact(const Json& object, const char* key) {
  std::string text = bytes(object, key);
  if (const std::size_t space = text.find(' '); space != std::string::npos)
    text = text.substr(0, space) + text[space + 1];
  return text;
}

std::string compact(double seconds) {
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  const auto minutes = static_cast<std::int64_t>(seconds / 60 + 0.5);
  return minutes < 100 ? fmt::format("{}min", minutes) : fmt::format("{}h{:02}", minutes / 60, minutes % 60);
}

double teraflops(const Json& subgraph) {
  double sum = 0;
  for (const auto& [phase, flops] : subgraph["flops"].items())
    if (phase != "observe" && phase != "quantize") sum += flops.get<double>();
  return sum / 1e12;
}

/// Whether two subgraphs have the same needs, so that one line covers both.
bool alike(Json a, Json b) {
  for (Json* json : {&a, &b}) {
    json->erase("name");
    json->erase("seconds");
  }
  return a == b;
}

constexpr std::size_t kNameColumns = 23;

std::string row_name(const std::string& name, const Json& subgraph, std::size_t count) {
  std::vector<std::string> notes;
  if (count > 1) notes.push_back(fmt::format("x{}", count));
  if (const auto mode = subgraph["mode"].get<std::string>(); mode != "store") notes.push_back(mode);
  const std::string text = notes.empty() ? name : name + " (" + join(notes) + ")";
  return text.size() <= kNameColumns ? fmt::format("{:<{}}", text, kNameColumns)
                                     : text + "\n" + std::string(kNameColumns, ' ');
}

std::string row(const std::string& name, const Json& subgraph) {
  return fmt::format("{}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}\n", name, compact(subgraph, "weight_bytes"),
                     compact(subgraph, "onloaded_bytes"), compact(subgraph, "activation_bytes"),
                     compact(subgraph, "activation_disk_bytes"), compact(subgraph, "statistics_bytes"),
                     compact(subgraph, "workspace_bytes"), compact(subgraph, "peak_bytes"),
                     compact(subgraph["seconds"].get<double>()));
}

std::string rows(const Json& subgraphs) {
  std::string text = fmt::format("{:<{}}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}\n", "subgraph", kNameColumns,
                                 "weights", "onload", "values", "disk", "sums", "work", "peak", "time");
  for (std::size_t i = 0; i < subgraphs.size();) {
    std::size_t end = i + 1;
    while (end < subgraphs.size() && alike(subgraphs[i], subgraphs[end])) ++end;
    text += row(row_name(subgraphs[i]["name"].get<std::string>(), subgraphs[i], end - i), subgraphs[i]);
    i = end;
  }
  return text + "memory in MiB (M) and GiB (G), by subgraph; time of each\n";
}

std::string request_text(const Json& plan) {
  std::string text = fmt::format("\n{} samples, {} tokens in {} batches of up to {} tokens\n", number(plan, "samples"),
                                 number(plan, "tokens"), number(plan, "batches"), number(plan, "batch_tokens"));
  text += fmt::format("{} threads, {}, products in {}\n", number(plan, "threads"), plan["dtype"].get<std::string>(),
                      plan["arithmetic"].get<std::string>());
  if (!plan["source_quantization"].is_null())
    text += fmt::format("source: {}; \"weights\" are mapped as stored\nand dequantized while they are onloaded\n",
                        plan["source_quantization"].get<std::string>());
  for (const Json& line : plan["rewrites"]) text += wrapped_words(line.get<std::string>(), 0, {});
  return text;
}

std::string memory_text(const Json& plan) {
  std::string text =
      fmt::format("memory: peak {}, budget {}, smallest sufficient budget {}\n", bytes(plan, "peak_bytes"),
                  number(plan, "budget_bytes") > (1ull << 62) ? "unlimited" : bytes(plan, "budget_bytes"),
                  bytes(plan, "smallest_budget_bytes"));
  if (number(plan, "device_peak_bytes") > 0)
    text += fmt::format("device memory: {}\n", bytes(plan, "device_peak_bytes"));
  return text;
}

}  // namespace

std::string plan_text(const Json& plan) {
  const Json& subgraphs = plan["subgraphs"];
  double read = 0, written = 0, operations = 0;
  for (const Json& subgraph : subgraphs) {
    read += subgraph["read_bytes"].get<double>();
    written += subgraph["written_bytes"].get<double>();
    operations += teraflops(subgraph);
  }
  std::string text = rows(subgraphs) + request_text(plan) + memory_text(plan);
  text += fmt::format("disk: {} read, {} written", format_bytes(static_cast<std::uint64_t>(read)),
                      format_bytes(static_cast<std::uint64_t>(written)));
  if (number(plan, "spilled_bytes") > 0) text += fmt::format(", {} of it activations", bytes(plan, "spilled_bytes"));
  text += "\n";
  text += fmt::format("time: about {} on this machine in its current state, without tokenizing\n",
                      format_duration(plan["estimated_seconds"].get<double>()));
  return text + fmt::format("work: {:.2f} TFLOP\n", operations);
}

}  // namespace layerpress::cli
