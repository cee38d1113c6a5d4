#include "layerpress/cli/text/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/cli/text/wrapped_text.h"

namespace layerpress::cli {
namespace {

std::uint64_t number(const Json& object, const char* key) { return object[key].get<std::uint64_t>(); }

std::string bytes(std::uint64_t count) { return count == 0 ? "-" : format_bytes(count); }

std::string bytes(const Json& object, const char* key) { return bytes(number(object, key)); }

/// "1.21G" of 1.21 GiB.
std::string compact(std::uint64_t count) {
  std::string text = bytes(count);
  if (const std::size_t space = text.find(' '); space != std::string::npos)
    text = text.substr(0, space) + text[space + 1];
  return text;
}

std::string compact(double seconds) {
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  const std::int64_t minutes = std::llround(seconds / 60);
  return minutes < 100 ? fmt::format("{}min", minutes) : fmt::format("{}h{:02}", minutes / 60, minutes % 60);
}

double teraflops(const Json& subgraph) {
  double sum = 0;
  for (const auto& [phase, flops] : subgraph["flops"].items())
    if (phase != "observe" && phase != "quantize") sum += flops.get<double>();
  return sum / 1e12;
}

constexpr std::array kSizes = {"weight_bytes",     "onloaded_bytes",  "activation_bytes", "activation_disk_bytes",
                               "statistics_bytes", "workspace_bytes", "peak_bytes"};

/// Subgraphs that one line covers, with the most that any of them needs.
struct Line {
  std::string name, mode;
  std::array<std::uint64_t, kSizes.size()> sizes;
  double seconds = 0;
  std::size_t count = 1;
};

Line line_of(const Json& subgraph) {
  Line line{
      subgraph["name"].get<std::string>(), subgraph["mode"].get<std::string>(), {}, subgraph["seconds"].get<double>()};
  for (std::size_t i = 0; i < kSizes.size(); ++i) line.sizes[i] = number(subgraph, kSizes[i]);
  return line;
}

/// Types of llama.cpp alternate between layers, whose needs then differ by a twentieth, or by little beside the peak.
bool nearly_equal(const Line& a, const Line& b) {
  const std::uint64_t peak = a.sizes.back();
  return a.mode == b.mode && std::equal(a.sizes.begin(), a.sizes.end(), b.sizes.begin(), [&](auto one, auto other) {
           const std::uint64_t most = std::max(one, other);
           return most - std::min(one, other) <= std::max(most / 20, peak / 100);
         });
}

void add(const Line& other, Line& line) {
  for (std::size_t i = 0; i < kSizes.size(); ++i) line.sizes[i] = std::max(line.sizes[i], other.sizes[i]);
  line.seconds = std::max(line.seconds, other.seconds);
  ++line.count;
}

constexpr std::size_t kNameColumns = 23;

std::string row_name(const Line& line) {
  const std::string& name = line.name;
  std::vector<std::string> notes;
  if (line.count > 1) notes.push_back(fmt::format("x{}", line.count));
  if (line.mode != "store") notes.push_back(line.mode);
  const std::string text = notes.empty() ? name : name + " (" + join(notes) + ")";
  return text.size() <= kNameColumns ? fmt::format("{:<{}}", text, kNameColumns)
                                     : text + "\n" + std::string(kNameColumns, ' ');
}

std::string row(const Line& line) {
  std::string text = row_name(line);
  for (const std::uint64_t size : line.sizes) text += fmt::format("{:>7}", compact(size));
  return text + fmt::format("{:>7}\n", compact(line.seconds));
}

std::string rows(const Json& subgraphs) {
  std::string text = fmt::format("{:<{}}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}\n", "subgraph", kNameColumns,
                                 "weights", "onload", "values", "disk", "sums", "work", "peak", "time");
  for (std::size_t i = 0; i < subgraphs.size();) {
    const Line first = line_of(subgraphs[i]);
    Line line = first;
    while (++i < subgraphs.size()) {
      const Line next = line_of(subgraphs[i]);
      if (!nearly_equal(first, next)) break;
      add(next, line);
    }
    text += row(line);
  }
  return text + "memory in MiB (M) and GiB (G), by subgraph; time of each\n";
}

std::string request_text(const Json& plan) {
  const std::uint64_t batches = number(plan, "batches");
  std::string text =
      fmt::format("\n{} samples, {} tokens in {} {} of up to {} tokens\n", number(plan, "samples"),
                  number(plan, "tokens"), batches, batches == 1 ? "batch" : "batches", number(plan, "batch_tokens"));
  text += fmt::format("{}, {}, products in {}\n", counted(number(plan, "threads"), "thread"),
                      plan["dtype"].get<std::string>(), plan["arithmetic"].get<std::string>());
  if (!plan["source_quantization"].is_null())
    text += fmt::format("source: {}; \"weights\" are mapped as stored\nand dequantized while they are onloaded\n",
                        plan["source_quantization"].get<std::string>());
  for (const Json& line : plan["rewrites"]) text += wrapped_words(line.get<std::string>(), 0, {});
  return text;
}

/// What is measured before the run, to choose schemes.
std::string measurement_text(const Json& steps) {
  if (steps.empty()) return "";
  std::vector<std::string> parts;
  for (const Json& step : steps)
    parts.push_back(fmt::format("{} (peak {}, {})", step["name"].get<std::string>(), bytes(step, "peak_bytes"),
                                format_duration(step["seconds"].get<double>())));
  return wrapped_words("measured first: " + join(parts) + ". The table is that of a choice that may follow.", 0, {});
}

std::string memory_text(const Json& plan) {
  std::string text =
      fmt::format("memory: peak {}, budget {}, smallest sufficient budget {}\n", bytes(plan, "peak_bytes"),
                  number(plan, "budget_bytes") > (1ull << 62) ? "unlimited" : bytes(plan, "budget_bytes"),
                  bytes(plan, "smallest_budget_bytes"));
  if (number(plan, "spare_bytes") > 0)
    text += fmt::format("        {} of the peak are freed memory, kept for reuse\n", bytes(plan, "spare_bytes"));
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
  std::string text = rows(subgraphs) + request_text(plan) + measurement_text(plan["measurement"]) + memory_text(plan);
  text += fmt::format("disk: {} read, {} written", format_bytes(static_cast<std::uint64_t>(read)),
                      format_bytes(static_cast<std::uint64_t>(written)));
  if (number(plan, "spilled_bytes") > 0) text += fmt::format(", {} of it activations", bytes(plan, "spilled_bytes"));
  text += "\n";
  text += fmt::format("time: about {} on this machine in its current state, without tokenizing\n",
                      format_duration(plan["estimated_seconds"].get<double>()));
  return text + fmt::format("work: {:.2f} TFLOP\n", operations);
}

}  // namespace layerpress::cli
