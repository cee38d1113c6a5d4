#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/schedule/group_division.h"

namespace layerpress::pipeline {

/// This rank's parts of a group, in their order.
compression::CompressionTask own_rows(const execution::RunContext& run, const compression::CompressionTask& whole,
                                      const schedule::GroupDivision& division);

/// What each rank did to its parts of the groups of one step, given to all ranks in few operations: one all-gather, or one
/// broadcast of each rank that has any, where those are few. Results are packed to their bits as they come.
class ResultExchange {
 public:
  struct Group {
    std::vector<compression::LinearShape> linears;
    const schedule::GroupDivision* division = nullptr;
  };

  /// Every rank names the same groups.
  ResultExchange(const execution::RunContext& run, std::vector<Group> groups);
  /// Takes this rank's results of a group, in the order of its parts.
  void put(std::size_t group, const std::vector<compression::CompressedModule>& own);
  /// Collective, once all is there. Phase "gather".
  void trade();
  /// All rows of all linears of a group, the same on every rank; reports are joined (errors averaged by rows).
  std::vector<compression::CompressedModule> take(std::size_t group,
                                                  const std::vector<compression::LinearWeight>& linears) const;

 private:
  const execution::RunContext& run_;
  std::vector<Group> groups_;
  at::Tensor own_;
  std::vector<at::Tensor> received_;  // by rank
};

/// Bytes that an exchange holds.
struct ExchangeBytes {
  std::uint64_t own = 0;       ///< while results are put
  std::uint64_t trading = 0;   ///< while they travel
  std::uint64_t received = 0;  ///< while they are taken
};
ExchangeBytes exchange_bytes(const std::vector<ResultExchange::Group>& groups);

}  // namespace layerpress::pipeline
