#include "layerpress/cli/plan_text.h"

#include <fmt/format.h>

#include "layerpress/base/text.h"

namespace layerpress::cli {
namespace {

std::uint64_t number(const Json& object, const char* key) { return object[key].get<std::uint64_t>(); }

std::string bytes(const Json& object, const char* key) {
  const std::uint64_t count = number(object, key);
  return count == 0 ? "-" : format_bytes(count);
}

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.1f} s", seconds);
  const auto minutes = static_cast<std::int64_t>(seconds / 60 + 0.5);
  return minutes < 90 ? fmt::format("{} min", minutes) : fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
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

std::string row(const std::string& name, const Json& subgraph, std::size_t count) {
  return fmt::format(
      "{:<34} {:<9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8.2f} {:>9}\n",
      count > 1 ? fmt::format("{} and {} more", name, count - 1) : name, subgraph["mode"].get<std::string>(),
      bytes(subgraph, "weight_bytes"), bytes(subgraph, "onloaded_bytes"), bytes(subgraph, "activation_bytes"),
      bytes(subgraph, "activation_disk_bytes"), bytes(subgraph, "statistics_bytes"), bytes(subgraph, "workspace_bytes"),
      bytes(subgraph, "peak_bytes"), teraflops(subgraph), duration(subgraph["seconds"].get<double>()));
}

}  // namespace

std::string plan_text(const Json& plan) {
  std::string text =
      fmt::format("{:<34} {:<9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}\n", "subgraph", "mode", "weights",
                  "onloaded", "values", "on disk", "sums", "workspace", "peak", "TFLOP", "time");
  const Json& subgraphs = plan["subgraphs"];
  double read = 0, written = 0;
  for (std::size_t i = 0; i < subgraphs.size();) {
    std::size_t end = i + 1;
    while (end < subgraphs.size() && alike(subgraphs[i], subgraphs[end])) ++end;
    text += row(subgraphs[i]["name"].get<std::string>(), subgraphs[i], end - i);
    i = end;
  }
  for (const Json& subgraph : subgraphs) {
    read += subgraph["read_bytes"].get<double>();
    written += subgraph["written_bytes"].get<double>();
  }
  text += fmt::format("\n{} samples, {} tokens in {} batches of up to {} tokens; {} threads, {}, products in {}\n",
                      number(plan, "samples"), number(plan, "tokens"), number(plan, "batches"),
                      number(plan, "batch_tokens"), number(plan, "threads"), plan["dtype"].get<std::string>(),
                      plan["arithmetic"].get<std::string>());
  if (!plan["source_quantization"].is_null())
    text += fmt::format("source: {}; \"weights\" are mapped as stored and dequantized while they are onloaded\n",
                        plan["source_quantization"].get<std::string>());
  for (const Json& line : plan["rewrites"]) text += line.get<std::string>() + "\n";
  text += fmt::format("memory: peak {}, budget {}, smallest sufficient budget {}\n", bytes(plan, "peak_bytes"),
                      number(plan, "budget_bytes") > (1ull << 62) ? "unlimited" : bytes(plan, "budget_bytes"),
                      bytes(plan, "smallest_budget_bytes"));
  if (number(plan, "device_peak_bytes") > 0)
    text += fmt::format("device memory: {}\n", bytes(plan, "device_peak_bytes"));
  text +=
      fmt::format("disk: {} read, {} written, {} of them activations\n", format_bytes(static_cast<std::uint64_t>(read)),
                  format_bytes(static_cast<std::uint64_t>(written)), bytes(plan, "spilled_bytes"));
  text += fmt::format("time: about {} on this machine in its current state, without tokenizing\n",
                      duration(plan["estimated_seconds"].get<double>()));
  return text;
}

}  // namespace layerpress::cli
