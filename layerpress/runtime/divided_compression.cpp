#include "layerpress/runtime/divided_compression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "layerpress/quant/row_transfer.h"

namespace layerpress::runtime {
namespace {

LinearShape shape_of(const LinearWeight& linear) {
  return {linear.weight.size(0), linear.weight.size(1), linear.scale_dtype, linear.scheme};
}

/// A part's report travels with its rows, in a place of this size.
constexpr std::uint64_t kReportBytes = 1024;

std::uint64_t part_bytes(const LinearShape& linear, const RowPart& part) {
  const std::uint64_t bytes =
      kReportBytes + quant::transfer_bytes(*linear.scheme->weights, part.rows(), linear.columns, linear.dtype);
  constexpr std::uint64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void write_report(ModuleReport report, std::uint8_t* place) {
  report.module.clear();  // everybody knows it
  std::string text = report.to_json().dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() >= kReportBytes) throw InternalError("[runtime.exchange] a report is too long: {}", text);
  text.resize(kReportBytes);
  std::memcpy(place, text.data(), kReportBytes);
}

ModuleReport read_report(const std::string& module, const std::uint8_t* place) {
  ModuleReport report =
      ModuleReport::from_json(parse_json(reinterpret_cast<const char*>(place), "report of another rank"));
  report.module = module;
  return report;
}

std::uint64_t bytes_of(const std::vector<LinearShape>& linears, const std::vector<RowPart>& parts) {
  std::uint64_t bytes = 0;
  for (const RowPart& part : parts) bytes += part_bytes(linears[part.linear], part);
  return bytes;
}

std::uint64_t most_bytes(const std::vector<LinearShape>& linears, const GroupDivision& division) {
  std::uint64_t most = 0;
  for (const std::vector<RowPart>& parts : division.parts) most = std::max(most, bytes_of(linears, parts));
  return most;
}

/// What each rank did to its parts, as every rank sees it.
class Exchange {
 public:
  Exchange(const RunContext& run, const std::vector<LinearWeight>& linears, const GroupDivision& division)
      : run_(run), linears_(linears), division_(division) {
    for (const LinearWeight& linear : linears) shapes_.push_back(shape_of(linear));
  }

  /// Gives away this rank's results, in the order of its parts, and returns every linear's.
  std::vector<CompressedModule> trade(std::vector<CompressedModule> own) {
    const at::Tensor sent = packed(own);
    if (division_.owner < 0) return assembled(own, run_.group.all_gather(sent));
    run_.group.broadcast(sent, division_.owner);
    return assembled(own, std::vector<at::Tensor>(division_.parts.size(), sent));
  }

 private:
  at::Tensor packed(const std::vector<CompressedModule>& own) const {
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(most_bytes(shapes_, division_))}, at::kByte);
    std::uint8_t* place = bytes.data_ptr<std::uint8_t>();
    const std::vector<RowPart>& parts = division_.parts[static_cast<std::size_t>(run_.group.rank())];
    for (std::size_t i = 0; i < own.size(); ++i) {
      const LinearShape& linear = shapes_[parts[i].linear];
      if (own[i].weight.scale.scalar_type() != linear.dtype)
        throw InternalError("[runtime.exchange] scales of {} have an unexpected dtype", own[i].report.module);
      write_report(own[i].report, place);
      quant::write_transfer(*linear.scheme->weights, own[i].weight, place + kReportBytes);
      place += part_bytes(linear, parts[i]);
    }
    return bytes;
  }

  /// Parts come in the order of the stacked rows, rank by rank.
  std::vector<CompressedModule> assembled(const std::vector<CompressedModule>& own,
                                          const std::vector<at::Tensor>& bytes) const {
    std::vector<std::vector<quant::QuantizedWeight>> rows(shapes_.size());
    std::vector<CompressedModule> modules(shapes_.size());
    std::map<const quant::QuantizationScheme*, MeanError> errors;  // linears of one scheme are solved as one stack
    for (std::size_t rank = 0; rank < division_.parts.size(); ++rank) {
      std::uint8_t* place = bytes[rank].data_ptr<std::uint8_t>();
      const bool is_own = std::cmp_equal(rank, run_.group.rank());
      for (std::size_t i = 0; i < division_.parts[rank].size(); ++i) {
        const RowPart& part = division_.parts[rank][i];
        const LinearShape& linear = shapes_[part.linear];
        rows[part.linear].push_back(is_own ? on_device(own[i].weight, at::kCPU)
                                           : quant::read_transfer(*linear.scheme->weights, part.rows(), linear.columns,
                                                                  linear.dtype, place + kReportBytes));
        join_report(read_report(linears_[part.linear].module, place), static_cast<double>(part.rows()),
                    modules[part.linear].report, errors[linear.scheme]);
        place += part_bytes(linear, part);
      }
    }
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      modules[i].weight = on_device(quant::join_rows(rows[i]), run_.placement.device);
      rows[i].clear();
      if (modules[i].report.output_error) modules[i].report.output_error = errors[shapes_[i].scheme].mean();
    }
    return modules;
  }

  struct MeanError {
    double sum = 0, rows = 0;
    double mean() const { return sum / rows; }
  };

  static void join_report(const ModuleReport& part, double rows, ModuleReport& whole, MeanError& error) {
    if (whole.module.empty()) whole = part;
    if (whole.fallback.empty()) whole.fallback = part.fallback;
    if (!part.output_error) whole.output_error.reset();
    error.sum += part.output_error.value_or(0) * rows;
    error.rows += rows;
  }

  static quant::QuantizedWeight on_device(quant::QuantizedWeight weight, at::Device device) {
    weight.codes = weight.codes.to(device);
    weight.scale = weight.scale.to(device);
    if (weight.zero_point.defined()) weight.zero_point = weight.zero_point.to(device);
    return weight;
  }

  const RunContext& run_;
  const std::vector<LinearWeight>& linears_;
  const GroupDivision& division_;
  std::vector<LinearShape> shapes_;
};

}  // namespace

std::vector<CompressedModule> compress_over_ranks(const RunContext& run, const Modifier& modifier,
                                                  const std::vector<LinearWeight>& linears,
                                                  const Statistics* statistics, const GroupDivision& division) {
  if (run.group.size() == 1) return modifier.compress(linears, statistics, run.times);
  std::vector<LinearWeight> own;
  for (const RowPart& part : division.parts[static_cast<std::size_t>(run.group.rank())]) {
    own.push_back(linears[part.linear]);
    own.back().weight = own.back().weight.narrow(0, part.first, part.rows());
  }
  std::vector<CompressedModule> results;
  if (!own.empty()) results = modifier.compress(own, statistics, run.times);
  const auto phase = run.times.measure("gather");
  return Exchange(run, linears, division).trade(std::move(results));
}

std::uint64_t exchange_workspace_bytes(const std::vector<LinearShape>& linears, const GroupDivision& division) {
  if (division.parts.size() <= 1) return 0;
  // What is sent, what comes from every rank, and that laid end to end, as c10d receives it; the owner's goes in place.
  return most_bytes(linears, division) * (division.owner >= 0 ? 1 : 2 * division.parts.size() + 1);
}

}  // namespace layerpress::runtime
