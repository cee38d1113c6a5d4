#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layerpress/checkpoint/writer.h"
#include "layerpress/output/subgraph_committer.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::output {

/// Writes a compressed checkpoint while the run goes on: codes as they come, plain tensors when their subgraph is done; and
/// the journal, by which a later run goes on from there.
///
/// Several ranks write one checkpoint: the tensors of the output are divided into sets, set s is written by rank s modulo
/// the number of ranks, and each rank keeps a journal of its own. All ranks call the same functions; where the order among
/// ranks matters, the function says so.
class OutputWriter : public pipeline::ResultSink {
 public:
  /// Name of the scratch file of activations when it lies in the directory; those of several ranks begin with it.
  static constexpr const char* kScratchName = ".activations";

  struct Options {
    std::filesystem::path directory;  ///< exists
    std::uint64_t max_shard_bytes = 0;
    bool reopen = false;  ///< the directory holds what an earlier run of the same kind left
    int rank = 0;
    int ranks = 1;
    int shard_sets = 1;  ///< number of ranks of the run that began the output, Journal::shard_sets of its header
    /// Ranks compress what they write, so linears are divided evenly before what is copied. Else all bytes are.
    bool linears_first = false;
  };
  /// Reserves all files that are this rank's at once; throws CheckpointError when the disk is too small. With `reopen`,
  /// rank 0 also removes what earlier runs left beside weight files, journals and scratch files; it comes before the others.
  OutputWriter(const setup::OpenedModel& model, const compression::Assignments& assignments,
               const std::vector<graph::Subgraph>& subgraphs, const Options& options);

  /// Takes over the subgraphs that an earlier run's records (Journal::read_all) name, if the tensors that are this rank's
  /// still have the bytes they had; those of others are not looked at. Returns the names of those that are damaged and have
  /// to be done again.
  std::vector<std::string> accept(const std::vector<Json>& records);
  /// Gives up a subgraph that was accepted here, because another rank found it damaged: it is done again. Does nothing for
  /// one that was not accepted. REQUIRES: start_journal() was not called.
  void reject(std::size_t index);
  /// From here on finished subgraphs go into this rank's journal in the directory, which begins with `header` and the number
  /// of sets. Rank 0's goes on with what was accepted, and takes the place of all earlier journals: the other ranks come
  /// after it.
  void start_journal(const Json& header);

  /// Whether this rank writes what replaces the weight of this linear. REQUIRES: the linear is assigned to a modifier.
  bool owns(graph::NodeId linear) const override { return is_own(set_of_linear_.at(linear)); }

  /// A result for a linear that is not own is ignored and may be empty.
  void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                     const compression::CompressedModule& result) override;
  void on_subgraph_done(std::size_t index, const Json& boundary) override;
  std::optional<std::size_t> durable_subgraph() override;

  /// Copies what no subgraph reads, as far as it is this rank's, and closes this rank's weight files.
  void finish();
  /// Writes the index over the files of all ranks, where one is needed; rank 0 does, once.
  void write_index() { writer_->write_index(); }
  /// Removes the scratch files of all ranks, which an earlier run with more ranks may have left, from `directory`.
  static void remove_scratch(const std::filesystem::path& directory);

  /// Per subgraph, whether it is done.
  const std::vector<bool>& finished() const { return finished_; }
  /// Records of the accepted and finished subgraphs, by index.
  const std::map<std::size_t, Json>& records() const { return records_; }
  /// Where this rank's values behind an accepted or finished subgraph are stored (ActivationStore::boundary). Null when they
  /// are not, or when another number of ranks stored them, which divides the samples otherwise.
  Json boundary(std::size_t index) const;
  bool has(const std::string& tensor) const { return announced_.count(tensor) != 0; }
  /// Of the modules that this rank writes, in the order of the subgraphs; all ranks' together are each module's once.
  std::vector<compression::ModuleReport> reports() const;
  /// Of all ranks.
  std::uint64_t total_bytes() const { return writer_->total_bytes(); }
  const checkpoint::CheckpointWriter& files() const { return *writer_; }

 private:
  bool is_own(int set) const { return set % options_.ranks == options_.rank; }
  void lay_out();
  void remove_leftovers() const;
  void copy(const std::string& name);
  std::set<std::string> compressed_names(std::size_t index) const;
  bool names_tensors_of(std::size_t index, const Json& tensors) const;
  bool accept_tensors(std::size_t index, const Json& tensors);
  const setup::OpenedModel& model_;
  const compression::Assignments& assignments_;
  const std::vector<graph::Subgraph>& subgraphs_;
  const Options options_;
  std::map<graph::NodeId, int> set_of_linear_;
  std::set<std::string> own_modules_;  // compressed ones
  std::set<std::string> announced_;    // all tensors of the output
  std::set<std::string> plain_;  // those that are copied as they are, whoever does, and are not known to be written
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  std::vector<bool> finished_;
  std::map<std::size_t, Json> records_;
  std::vector<std::string> written_;                // tensors of the subgraph under way
  std::vector<compression::ModuleReport> reports_;  // its modules
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<SubgraphCommitter> committer_;  // last: its thread uses what stands above
};

}  // namespace layerpress::output
