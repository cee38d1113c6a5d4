#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layerpress/checkpoint/writer.h"
#include "layerpress/recipe/open_model.h"
#include "layerpress/recipe/subgraph_committer.h"
#include "layerpress/runtime/compression.h"

namespace layerpress::recipe {

/// Writes a compressed checkpoint while the run goes on: codes as they come, plain tensors when their subgraph is done; and
/// the journal, by which a later run goes on from there.
class OutputWriter : public runtime::ResultSink {
 public:
  /// Name of the scratch file of activations when it lies in the directory.
  static constexpr const char* kScratchName = ".activations";

  struct Options {
    std::filesystem::path directory;  ///< exists
    std::uint64_t max_shard_bytes = 0;
    bool reopen = false;  ///< the directory holds what an earlier run of the same kind left
  };
  /// Reserves all files at once; throws CheckpointError when the disk is too small.
  OutputWriter(const OpenedModel& model, const runtime::Assignments& assignments,
               const std::vector<graph::Subgraph>& subgraphs, const Options& options);

  /// Takes over the subgraphs that an earlier run's records name, if all their tensors still have the bytes they had.
  /// Returns the names of those that are damaged and have to be done again.
  std::vector<std::string> accept(const std::vector<Json>& records);
  /// From here on finished subgraphs go into a journal in the directory, which begins with `header` and what was accepted.
  void start_journal(const Json& header);

  void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                     const runtime::CompressedModule& result) override;
  void on_subgraph_done(std::size_t index, const Json& boundary) override;
  std::optional<std::size_t> durable_subgraph() override;

  /// Copies what no subgraph reads and closes all weight files.
  void finish();

  /// Per subgraph, whether it is done.
  const std::vector<bool>& finished() const { return finished_; }
  /// Records of the accepted and finished subgraphs, by index.
  const std::map<std::size_t, Json>& records() const { return records_; }
  bool has(const std::string& tensor) const { return announced_.count(tensor) != 0; }
  /// In the order of the subgraphs.
  std::vector<runtime::ModuleReport> reports() const;
  std::uint64_t total_bytes() const { return writer_->total_bytes(); }
  const checkpoint::CheckpointWriter& files() const { return *writer_; }

 private:
  void remove_leftovers() const;
  void copy(const std::string& name);
  bool accept_tensors(std::size_t index, const Json& tensors);
  const OpenedModel& model_;
  const runtime::Assignments& assignments_;
  const std::vector<graph::Subgraph>& subgraphs_;
  std::filesystem::path directory_;
  std::set<std::string> announced_;  // all tensors of the output
  std::set<std::string> accepted_;   // of them, named by an accepted record
  std::set<std::string> plain_;      // tensors that are copied as they are and not yet written
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  std::vector<bool> finished_;
  std::map<std::size_t, Json> records_;
  std::vector<std::string> written_;            // tensors of the subgraph under way
  std::vector<runtime::ModuleReport> reports_;  // its modules
  std::unique_ptr<runtime::Journal> journal_;
  std::unique_ptr<SubgraphCommitter> committer_;  // last: its thread uses what stands above
};

}  // namespace layerpress::recipe
