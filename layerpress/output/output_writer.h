#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layerpress/checkpoint/writer.h"
#include "layerpress/compression/assignments.h"
#include "layerpress/output/importance_output.h"
#include "layerpress/output/subgraph_committer.h"
#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::output {

/// Writes a compressed checkpoint during the run: codes as they arrive, plain tensors when their subgraph is done. It
/// also writes the journal from which a later run continues.
///
/// Several ranks write one checkpoint. The tensors of the output are divided into sets; rank s modulo the number of
/// ranks writes set s, and each rank has its own journal. All ranks call the same functions; where the order among
/// ranks matters, the function says so.
class OutputWriter : public pipeline::ResultSink {
 public:
  /// Name of the scratch file of activations if it is in the directory; the names of several ranks begin with it.
  static constexpr const char* kScratchName = ".activations";

  struct Options {
    std::filesystem::path directory;  ///< exists
    std::uint64_t max_shard_bytes = 0;
    bool reopen = false;  ///< the directory contains the output of an earlier run with the same identity
    int rank = 0;
    int ranks = 1;
    int shard_sets = 1;  ///< ranks of the run that began the output: Journal::shard_sets of its header
    /// Divide linears evenly before copied tensors, because ranks compress what they write. Otherwise all bytes are
    /// divided.
    bool linears_first = false;
    gguf::ImportanceOrigin importance{};  ///< of the importance file, if the setup measures inputs
  };
  /// Reserves all files of this rank at once; throws IoError if the disk is too small. With `reopen`, rank 0
  /// also removes leftovers of earlier runs other than weight files, journals and scratch files; it must call this
  /// before the others.
  OutputWriter(const setup::RunSetup& setup, const Options& options);

  /// Takes over the subgraphs in an earlier run's records (Journal::read_all) if this rank's tensors still have the
  /// same bytes; tensors of other ranks are not checked. Returns the names of damaged subgraphs, which have to be done
  /// again.
  std::vector<std::string> accept(const std::vector<Json>& records);
  /// Reverts the acceptance of a subgraph that another rank found damaged, so that it is done again. Does nothing if it
  /// was not accepted. REQUIRES: start_journal() was not called.
  void reject(std::size_t index);
  /// From now on, finished subgraphs are recorded in this rank's journal in the directory, which begins with `header`
  /// and the number of sets. Rank 0's journal also has the accepted subgraphs and replaces all earlier journals, so the
  /// other ranks call this after it.
  void start_journal(const Json& header);

  /// Whether this rank writes the tensors that replace the weight of this linear. REQUIRES: the linear is assigned to a
  /// modifier.
  bool owns(graph::NodeId linear) const override { return is_own(set_of_linear_.at(linear)); }

  /// A result for a linear of another rank is ignored and may be empty.
  void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                     const compression::CompressedModule& result) override;
  void on_tensor(const std::string& name, const at::Tensor& parameter) override;
  void on_subgraph_done(std::size_t index, const Json& boundary) override;
  std::optional<std::size_t> durable_subgraph() override;

  /// Copies this rank's share of the tensors that no subgraph reads, and closes this rank's weight files.
  void finish();
  /// Writes the index over the files of all ranks, if one is needed. Rank 0 calls it, once.
  void write_index() { writer_->write_index(); }
  /// Removes the scratch files of all ranks from `directory`, including those of an earlier run with more ranks.
  static void remove_scratch(const std::filesystem::path& directory);

  /// Whether each subgraph is done.
  const std::vector<bool>& finished() const { return finished_; }
  /// Records of the accepted and finished subgraphs, by index.
  const std::map<std::size_t, Json>& records() const { return records_; }
  /// Where this rank's values after an accepted or finished subgraph are stored (ActivationStore::boundary). Null if
  /// they are not stored, or if another number of ranks stored them, because samples were then divided differently.
  Json boundary(std::size_t index) const;
  /// Whether this rank writes the tensor.
  bool owns_tensor(const std::string& tensor) const { return writer_->owns(tensor); }
  std::vector<std::string> file_names() const { return writer_->file_names(); }
  bool has(const std::string& tensor) const { return announced_.count(tensor) != 0; }
  /// A tensor that is written, as the run knows it.
  at::Tensor read(const std::string& tensor) const { return target_.restored(tensor, writer_->read(tensor)); }
  /// Reports of the modules that this rank writes, in the order of the subgraphs. Together, the ranks report each
  /// module once.
  std::vector<compression::ModuleReport> reports() const;
  /// Over all ranks: of the weights, or of whole files if these are all that the result has.
  std::uint64_t total_bytes() const { return target_.has_config() ? writer_->total_bytes() : writer_->file_bytes(); }

 private:
  bool is_own(int set) const { return set % options_.ranks == options_.rank; }
  void lay_out();
  void remove_leftovers() const;
  /// Writes the tensors of the output that stand for an uncompressed tensor of the original, unless they are written.
  void copy(const std::string& name);
  bool is_missing(const std::string& name) const;
  void write_tensor(const std::string& name, const at::Tensor& value);
  bool names_tensors_of(std::size_t index, const Json& tensors) const;
  bool accept_tensors(std::size_t index, const Json& tensors);
  void retract_tensors(std::size_t index, const Json& record);
  bool accept_importance(std::size_t index, const Json& record);
  void sync();
  const setup::RunSetup& setup_;
  const setup::OpenedModel& model_;
  const compression::Assignments& assignments_;
  const std::vector<graph::Subgraph>& subgraphs_;
  const target::Target& target_;
  const Options options_;
  std::map<graph::NodeId, int> set_of_linear_;
  std::set<std::string> own_modules_;                       // compressed modules that this rank writes
  std::set<std::string> announced_;                         // all tensors of the output
  std::map<std::string, std::vector<std::string>> copies_;  // tensors that stay, and theirs in the output
  std::set<std::string> plain_;  // tensors of the output that some rank copies and that are not known to be written
  std::vector<std::set<std::string>> made_;  // by subgraph: tensors that are not copied; last, those of none
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  std::unique_ptr<ImportanceOutput> importance_;  // of the first rank, if one is wanted
  std::vector<bool> finished_;
  std::map<std::size_t, Json> records_;
  std::vector<std::string> written_;                // tensors of the current subgraph
  std::vector<compression::ModuleReport> reports_;  // its modules
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<SubgraphCommitter> committer_;  // last member: its thread uses the others
};

}  // namespace layerpress::output
