#include "layerpress/pipeline/sinks/report_sink.h"

#include <gtest/gtest.h>

namespace layerpress::pipeline {
namespace {

TEST(ReportSink, KeepsReportsAndHoldsNoSpace) {
  ReportSink sink;
  EXPECT_FALSE(sink.durable_subgraph().has_value());
  for (const char* module : {"b", "a"}) {
    compression::CompressedModule result;
    result.report.module = module;
    result.report.figures = {1, 2};
    sink.on_compressed({}, quant::unchanged_scheme(), result);
  }
  sink.on_subgraph_done(0, Json());
  EXPECT_EQ(sink.durable_subgraph(), 0u);
  sink.on_subgraph_done(3, Json());
  EXPECT_EQ(sink.durable_subgraph(), 3u);
  ASSERT_EQ(sink.reports().size(), 2u);
  EXPECT_EQ(sink.reports()[0].module, "b");
  EXPECT_EQ(sink.reports()[1].figures, (std::vector<double>{1, 2}));
}

}  // namespace
}  // namespace layerpress::pipeline
