#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layerpress/checkpoint/writer.h"
#include "layerpress/recipe/open_model.h"
#include "layerpress/runtime/compression.h"

namespace layerpress::recipe {

/// Writes a compressed checkpoint while the run goes on: codes as they come, plain tensors when their subgraph is done.
class OutputWriter : public runtime::ResultSink {
 public:
  /// REQUIRES: `directory` exists. Reserves all files at once; throws CheckpointError when the disk is too small.
  OutputWriter(const OpenedModel& model, const runtime::Assignments& assignments, std::filesystem::path directory,
               std::uint64_t max_shard_bytes);

  void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                     const runtime::CompressedModule& result) override;
  void on_subgraph_done(const graph::Subgraph& subgraph) override;

  /// Copies what no subgraph reads and closes all weight files.
  void finish();

  const std::vector<runtime::ModuleReport>& reports() const { return reports_; }
  std::uint64_t total_bytes() const { return writer_->total_bytes(); }

 private:
  void copy(const std::string& name);
  const OpenedModel& model_;
  std::set<std::string> plain_;  // tensors that are copied as they are and not yet written
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  std::vector<runtime::ModuleReport> reports_;
};

}  // namespace layerpress::recipe
