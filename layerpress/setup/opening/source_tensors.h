#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/assignments.h"
#include "layerpress/quant/targets/matching.h"
#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

/// What becomes of every tensor of the source. Tensors that hold several experts count once for each of their weights.
struct SourceTensors {
  struct Dropped {
    std::string name;
    std::string reason;
  };
  std::size_t read = 0;             ///< by the graph; compressed or copied
  std::vector<std::string> copied;  ///< as stored, because the graph does not read them
  std::vector<Dropped> dropped;     ///< not in the output
  /// The places in the checkpoint that the graph does not read ("mtp"), with the number of their tensors: one line, or nothing.
  std::string copied_text;

  rewrite::Changes changes() const;  ///< takes `dropped` out of the model
  Json to_json() const;
};

/// Of a model whose embeddings are not untied yet.
SourceTensors source_tensors(const OpenedModel& model, const compression::Assignments& assignments,
                             const target::Target& target);

/// Modules of stored weights that the graph does not read, or does not compress for want of an operation, but that a reader of
/// the targets could take for compressed: entries for the ignore list.
std::vector<std::string> unread_modules_to_ignore(const OpenedModel& model,
                                                  const std::vector<quant::TargetList>& targets);

}  // namespace layerpress::setup
