#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/schedule/group_division.h"

namespace layerpress::pipeline {

/// This rank's parts of a group, in order.
compression::CompressionTask own_rows(const execution::RunContext& run, const compression::CompressionTask& whole,
                                      const schedule::GroupDivision& division);

/// Exchanges the ranks' results for the groups of one step in few operations: one all-gather, or, if few ranks have
/// results, one broadcast for each of them. Results are packed to their bits as they arrive.
class ResultExchange {
 public:
  struct Group {
    std::vector<compression::LinearShape> linears;
    const schedule::GroupDivision* division = nullptr;
  };

  /// All ranks pass the same groups.
  ResultExchange(const execution::RunContext& run, std::vector<Group> groups);
  /// Adds this rank's results of a group, in the order of its parts.
  void put(std::size_t group, const std::vector<compression::CompressedModule>& own);
  /// Collective; to be called after all results are added. Phase "gather".
  void trade();
  /// All rows of all linears of a group, the same on every rank, with joined reports (errors averaged by rows).
  std::vector<compression::CompressedModule> take(std::size_t group,
                                                  const std::vector<compression::LinearWeight>& linears) const;

 private:
  const execution::RunContext& run_;
  std::vector<Group> groups_;
  at::Tensor own_;
  std::vector<at::Tensor> received_;  // by rank
};

/// Bytes that an exchange holds in its three phases.
struct ExchangeBytes {
  std::uint64_t own = 0;       ///< while results are added
  std::uint64_t trading = 0;   ///< while they are exchanged
  std::uint64_t received = 0;  ///< while they are taken
};
ExchangeBytes exchange_bytes(const std::vector<ResultExchange::Group>& groups);

}  // namespace layerpress::pipeline
