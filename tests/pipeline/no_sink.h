#pragma once

#include "layerpress/pipeline/schedule_runner.h"

namespace layerpress::pipeline {

/// For runs whose results nobody looks at.
class NoSink : public ResultSink {
 public:
  void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                     const compression::CompressedModule&) override {}
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t, const Json&) override {}
};

}  // namespace layerpress::pipeline
