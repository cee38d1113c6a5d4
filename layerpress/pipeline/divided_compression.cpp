#include "layerpress/pipeline/divided_compression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::pipeline {
namespace {

/// A part's report is sent with its rows, in a field of this size.
constexpr std::uint64_t kReportBytes = 1024;

std::uint64_t part_bytes(const compression::LinearShape& linear, const schedule::RowPart& part) {
  const std::uint64_t bytes =
      kReportBytes + quant::transfer_bytes(*linear.scheme, part.rows(), linear.columns, linear.dtype);
  constexpr std::uint64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void write_report(compression::ModuleReport report, std::uint8_t* place) {
  report.module.clear();  // all ranks know it
  std::string text = report.to_json().dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() >= kReportBytes) throw InternalError("[pipeline.exchange] a report is too long: {}", text);
  text.resize(kReportBytes);
  std::memcpy(place, text.data(), kReportBytes);
}

compression::ModuleReport read_report(const std::string& module, const std::uint8_t* place) {
  compression::ModuleReport report =
      compression::ModuleReport::from_json(parse_json(reinterpret_cast<const char*>(place), "report of another rank"));
  report.module = module;
  return report;
}

using Groups = std::vector<ResultExchange::Group>;

std::uint64_t bytes_of(const ResultExchange::Group& group, std::size_t rank) {
  std::uint64_t bytes = 0;
  for (const schedule::RowPart& part : group.division->parts[rank])
    bytes += part_bytes(group.linears[part.linear], part);
  return bytes;
}

/// The offset of a group's parts in the data that a rank sends; after the last group, the total size.
std::uint64_t place_of(const Groups& groups, std::size_t group, std::size_t rank) {
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < group; ++i) place += bytes_of(groups[i], rank);
  return place;
}

/// How much each rank sends, and how.
struct Traffic {
  std::vector<std::uint64_t> bytes;  // by rank
  std::uint64_t most = 0, all = 0;
  bool one_by_one = false;  // broadcasts; in an all-gather, each rank sends as much as the one with most

  explicit Traffic(const Groups& groups) {
    const std::size_t ranks = groups.empty() ? 0 : groups.front().division->parts.size();
    std::size_t senders = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      bytes.push_back(place_of(groups, groups.size(), rank));
      most = std::max(most, bytes.back());
      all += bytes.back();
      senders += bytes.back() > 0 ? 1 : 0;
    }
    one_by_one = 2 * senders <= ranks;
  }

  /// Bytes that a rank allocates for the data it sends.
  std::uint64_t sent(std::size_t rank) const { return one_by_one ? bytes[rank] : most; }
};

at::Tensor bytes_tensor(std::uint64_t bytes) { return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte); }

quant::QuantizedWeight on_device(quant::QuantizedWeight weight, at::Device device) {
  weight.for_each_tensor([&](at::Tensor& tensor) { tensor = tensor.to(device); });
  return weight;
}

/// Of the parts of linears that are solved together.
struct MeanError {
  double error = 0, power = 0, rows = 0;
};

void join_report(const compression::ModuleReport& part, double rows, compression::ModuleReport& whole,
                 MeanError& error) {
  if (whole.module.empty())
    whole = part;
  else
    whole.add_figures(part.figures);
  if (whole.fallback.empty()) whole.fallback = part.fallback;
  if (!part.output_error) whole.output_error.reset();
  error.error += part.output_error.value_or(0) * rows;
  error.power += part.output_power.value_or(0) * rows;
  error.rows += rows;
}

/// Whether a result has the dtype that other ranks read: of what is not packed, the scales, or the values or blocks of a
/// weight without them. Nothing of an unchanged weight travels.
bool has_expected_dtype(const compression::LinearShape& linear, const quant::QuantizedWeight& weight) {
  const quant::QuantizationScheme& scheme = *linear.scheme;
  if (quant::is_unchanged(scheme)) return true;
  if (scheme.weights) return weight.scale.scalar_type() == quant::scale_dtype(*scheme.weights, linear.dtype);
  return weight.codes.scalar_type() ==
         quant::compressed_layout(scheme, linear.rows, linear.columns, linear.dtype).front().dtype;
}

}  // namespace

compression::CompressionTask own_rows(const execution::RunContext& run, const compression::CompressionTask& whole,
                                      const schedule::GroupDivision& division) {
  compression::CompressionTask own{{}, whole.statistics};
  for (const schedule::RowPart& part : division.parts[static_cast<std::size_t>(run.group.rank())]) {
    compression::LinearWeight linear = whole.linears[part.linear];
    if (part.rows() < linear.weight.size(0)) linear.whole = linear.weight;
    linear.weight = linear.weight.narrow(0, part.first, part.rows());
    linear.first_row = part.first;
    own.linears.push_back(std::move(linear));
  }
  return own;
}

ResultExchange::ResultExchange(const execution::RunContext& run, std::vector<Group> groups)
    : run_(run), groups_(std::move(groups)) {
  own_ = bytes_tensor(Traffic(groups_).sent(static_cast<std::size_t>(run.group.rank())));
}

void ResultExchange::put(std::size_t group, const std::vector<compression::CompressedModule>& own) {
  const auto rank = static_cast<std::size_t>(run_.group.rank());
  std::uint8_t* place = own_.data_ptr<std::uint8_t>() + place_of(groups_, group, rank);
  const std::vector<schedule::RowPart>& parts = groups_[group].division->parts[rank];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const compression::LinearShape& linear = groups_[group].linears[parts[i].linear];
    if (!has_expected_dtype(linear, own.at(i).weight))
      throw InternalError("[pipeline.exchange] scales or values of {} have an unexpected dtype", own[i].report.module);
    write_report(own[i].report, place);
    quant::write_transfer(*linear.scheme, own[i].weight, place + kReportBytes);
    place += part_bytes(linear, parts[i]);
  }
}

void ResultExchange::trade() {
  const auto phase = run_.times.measure("gather");
  const Traffic traffic(groups_);
  if (!traffic.one_by_one) {
    received_ = run_.group.all_gather(own_);
  } else {
    for (std::size_t rank = 0; rank < traffic.bytes.size(); ++rank) {
      const bool is_own = std::cmp_equal(rank, run_.group.rank());
      received_.push_back(is_own ? own_ : bytes_tensor(traffic.bytes[rank]));
      if (traffic.bytes[rank] > 0) run_.group.broadcast(received_.back(), static_cast<int>(rank));
    }
  }
  own_.reset();
}

/// Parts are in the order of the stacked rows, rank by rank.
std::vector<compression::CompressedModule> ResultExchange::take(
    std::size_t group, const std::vector<compression::LinearWeight>& linears) const {
  const auto phase = run_.times.measure("gather");
  const std::vector<compression::LinearShape>& shapes = groups_[group].linears;
  std::vector<std::vector<quant::QuantizedWeight>> rows(shapes.size());
  std::vector<compression::CompressedModule> modules(shapes.size());
  std::map<const quant::QuantizationScheme*, MeanError> errors;  // linears of one scheme are solved as one stack
  for (std::size_t rank = 0; rank < received_.size(); ++rank) {
    std::uint8_t* place = received_[rank].data_ptr<std::uint8_t>() + place_of(groups_, group, rank);
    for (const schedule::RowPart& part : groups_[group].division->parts[rank]) {
      const compression::LinearShape& linear = shapes[part.linear];
      rows[part.linear].push_back(
          quant::read_transfer(*linear.scheme, part.rows(), linear.columns, linear.dtype, place + kReportBytes));
      join_report(read_report(linears[part.linear].module, place), static_cast<double>(part.rows()),
                  modules[part.linear].report, errors[linear.scheme]);
      place += part_bytes(linear, part);
    }
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    modules[i].weight = on_device(quant::join_rows(rows[i]), run_.placement.device);
    rows[i].clear();
    const MeanError& all = errors[shapes[i].scheme];
    if (modules[i].report.output_error) modules[i].report.output_error = all.error / all.rows;
    if (modules[i].report.output_error) modules[i].report.output_power = all.power / all.rows;
  }
  return modules;
}

ExchangeBytes exchange_bytes(const std::vector<ResultExchange::Group>& groups) {
  const Traffic traffic(groups);
  const std::uint64_t ranks = traffic.bytes.size();
  if (ranks <= 1) return {};
  if (traffic.one_by_one) return {traffic.most, traffic.all, traffic.all};
  // The sent data, the data of every rank, and its concatenation, as c10d receives it; two ranks need less.
  return {traffic.most, (2 * ranks + 1) * traffic.most, ranks * traffic.most};
}

}  // namespace layerpress::pipeline
