#include "layerpress/output/output_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "layerpress/base/text.h"
#include "layerpress/output/resumed_weights.h"
#include "tests/base/file_size_limit.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::output {
namespace {

namespace fs = std::filesystem;
using test::read_bytes;
using test::TemporaryFolder;

constexpr int kLayers = 4;

/// A small model whose linears, except the head, are compressed with random codes.
class OutputWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"hidden_size", 64},
                         {"intermediate_size", 96},
                         {"num_hidden_layers", kLayers},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"vocab_size", 160},
                         {"tie_word_embeddings", false}};
    at::manual_seed(71);
    std::map<std::string, at::Tensor> tensors = {{"model.inv_freq", at::rand({8})}};  // read by no node
    for (const graph::Node& node : model::trace_model(config).graph.nodes)
      for (const graph::WeightUse& use : graph::weights_of(node.operation))
        tensors[use.name] = at::randn(use.shape).to(at::kBFloat16);
    folder_.write("model/config.json", config.dump());
    checkpoint::write_safetensors(folder_ / "model/model.safetensors", tensors);
    model_ = setup::open_model((folder_ / "model").string());
    subgraphs_ = setup::cut_model(model_.traced, {});
    setup_.target = target::compressed_tensors_target();
    scheme_ = quant::preset_scheme("W4A16");
    scheme_.weights->group_size = 32;
    compress();
    for (const auto& [name, tensor] : tensors)
      if (expected_.count(parent_name(name) + ".weight_packed") == 0) expected_[name] = tensor;
  }

  const std::string& module_name(graph::NodeId n) const {
    return model_.traced.graph.module_name(model_.traced.graph.nodes[n]);
  }

  void compress() {
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(model_.traced.graph.nodes.size()); ++n) {
      const auto* linear = std::get_if<graph::Linear>(&model_.traced.graph.nodes[n].operation);
      if (linear == nullptr || module_name(n) == "lm_head") continue;
      assignments_.linears[n] = {nullptr, &scheme_, at::kBFloat16};
      compression::CompressedModule& result = results_[n];
      result.weight.codes = at::randint(-8, 8, {linear->out_features, linear->in_features}, at::kChar);
      result.weight.scale = at::rand({linear->out_features, linear->in_features / 32}).add(0.1).to(at::kBFloat16);
      result.report.module = module_name(n);
      for (const quant::NamedTensor& part : quant::compress(scheme_, result.weight))
        expected_[module_name(n) + "." + part.suffix] = part.tensor;
    }
  }

  OutputWriter::Options options(int rank, int ranks, int sets) const {
    OutputWriter::Options options;
    options.directory = folder_ / "out";
    fs::create_directory(options.directory);
    options.max_shard_bytes = 20'000;
    options.rank = rank;
    options.ranks = ranks;
    options.shard_sets = sets;
    return options;
  }

  std::unique_ptr<OutputWriter> open(const OutputWriter::Options& options) const {
    return std::make_unique<OutputWriter>(setup_, options);
  }

  std::unique_ptr<OutputWriter> open_again(int rank, int ranks, int sets) const {
    OutputWriter::Options again = options(rank, ranks, sets);
    again.reopen = true;
    return open(again);
  }

  /// The writers of all ranks of a run that begins.
  std::vector<std::unique_ptr<OutputWriter>> begin(int ranks) const {
    std::vector<std::unique_ptr<OutputWriter>> writers;
    for (int rank = 0; rank < ranks; ++rank) {
      writers.push_back(open(options(rank, ranks, ranks)));
      writers.back()->start_journal({{"record", "header"}});
    }
    return writers;
  }

  /// The writers of all ranks of a run that goes on with what is there; what one finds damaged all do again.
  std::vector<std::unique_ptr<OutputWriter>> go_on(int ranks, std::size_t damaged = 0) const {
    const std::vector<Json> records = Journal::read_all(folder_ / "out");
    std::vector<std::unique_ptr<OutputWriter>> writers;
    std::size_t found = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      writers.push_back(open_again(rank, ranks, Journal::shard_sets(records.at(0))));
      found += writers.back()->accept(records).size();
    }
    EXPECT_EQ(found, damaged);
    for (std::size_t s = 0; s < subgraphs_.size(); ++s)
      for (const auto& writer : writers)
        if (!writer->finished()[s])
          for (const auto& other : writers) other->reject(s);
    for (const auto& writer : writers) writer->start_journal({{"record", "header"}});
    return writers;
  }

  /// Subgraphs before `last` that are not finished, on one rank. Where a value lies is told apart by rank and subgraph.
  void work(OutputWriter& writer, int rank, std::size_t last) const {
    for (std::size_t s = 0; s < last; ++s) {
      if (writer.finished()[s]) continue;
      for (const graph::NodeId n : subgraphs_[s].nodes)
        if (const auto result = results_.find(n); result != results_.end())
          writer.on_compressed(model_.traced.graph.nodes[n], scheme_,
                               writer.owns(n) ? result->second : compression::CompressedModule());
      writer.on_subgraph_done(s, {{"rank", rank}, {"subgraph", s}});
    }
  }

  /// Everything that is not finished, the ranks at once; then the index.
  void complete(const std::vector<std::unique_ptr<OutputWriter>>& writers) const {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < writers.size(); ++rank)
      threads.emplace_back([&, rank] {
        work(*writers[rank], static_cast<int>(rank), subgraphs_.size());
        writers[rank]->finish();
      });
    for (std::thread& thread : threads) thread.join();
    writers[0]->write_index();
  }

  void expect_complete() const {
    folder_.write("out/config.json", "{}");
    const auto output = checkpoint::Checkpoint::open(folder_ / "out");
    ASSERT_EQ(output->names().size(), expected_.size());
    for (const auto& [name, tensor] : expected_) EXPECT_TRUE(at::equal(output->tensor(name), tensor)) << name;
  }

  void expect_every_report_once(const std::vector<std::unique_ptr<OutputWriter>>& writers) const {
    std::multiset<std::string> found, wanted;
    for (const auto& writer : writers)
      for (const compression::ModuleReport& report : writer->reports()) found.insert(report.module);
    for (const auto& [n, result] : results_) wanted.insert(module_name(n));
    EXPECT_EQ(found, wanted);
  }

  std::uint64_t own_bytes(const OutputWriter& writer, const std::string& with = "") const {
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : expected_)
      if (writer.owns_tensor(name) && name.find(with) != std::string::npos) bytes += tensor.nbytes();
    return bytes;
  }

  /// Changes the first byte of a tensor in the unfinished output.
  void damage(const std::string& tensor) const {
    for (const auto& entry : fs::directory_iterator(folder_ / "out")) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto file = checkpoint::SafetensorsFile::open(entry.path());
      if (!file->contains(tensor)) continue;
      const auto offset = static_cast<std::streamoff>(file->tensors().at(tensor).offset);
      std::fstream stream(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
      stream.seekg(offset);
      const int byte = stream.get();
      stream.seekp(offset);
      stream.put(static_cast<char>(byte ^ 1));
    }
  }

  TemporaryFolder folder_;
  setup::RunSetup setup_;
  setup::OpenedModel& model_ = setup_.model;
  quant::QuantizationScheme scheme_;
  compression::Assignments& assignments_ = setup_.assignments;
  std::vector<graph::Subgraph>& subgraphs_ = setup_.subgraphs;
  std::map<graph::NodeId, compression::CompressedModule> results_;
  std::map<std::string, at::Tensor> expected_;  // all tensors of the output
};

TEST_F(OutputWriterTest, RanksMakeOneCheckpoint) {
  for (const int ranks : {1, 2, 3, 40}) {
    const auto writers = begin(ranks);
    complete(writers);
    expect_complete();
    expect_every_report_once(writers);
    for (const auto& [n, assignment] : assignments_.linears) {
      int owners = 0;
      for (const auto& writer : writers) {
        owners += writer->owns(n) ? 1 : 0;
        for (const char* suffix : {".weight_packed", ".weight_scale", ".weight_shape"})
          EXPECT_EQ(writer->owns_tensor(module_name(n) + suffix), writer->owns(n));
      }
      EXPECT_EQ(owners, 1);
    }
    fs::remove_all(folder_ / "out");
  }
}

/// The order of one set decides the bytes of every output of one process.
TEST_F(OutputWriterTest, OneSetLiesInTheOrderOfTheGraph) {
  complete(begin(1));
  std::vector<checkpoint::TensorSpec> specs;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    if (expected_.count(name) != 0 && seen.insert(name).second)
      specs.push_back({name, expected_.at(name).scalar_type(), expected_.at(name).sizes().vec()});
  };
  for (const graph::Node& node : model_.traced.graph.nodes) {
    for (const char* suffix : {"weight_packed", "weight_scale", "weight_shape"})
      add(model_.traced.graph.module_name(node) + "." + suffix);
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) add(use.name);
  }
  add("model.inv_freq");
  fs::create_directory(folder_ / "plain");
  checkpoint::CheckpointWriter writer(folder_ / "plain",
                                      checkpoint::safetensors_layout(specs, {.max_shard_bytes = 20'000}), {});
  for (const checkpoint::TensorSpec& spec : specs) writer.write(spec.name, expected_.at(spec.name));
  writer.finish();
  EXPECT_GT(writer.file_names().size(), 2u);
  for (const auto& entry : fs::directory_iterator(folder_ / "plain"))
    EXPECT_EQ(read_bytes(folder_ / "out" / entry.path().filename()), read_bytes(entry.path())) << entry.path();
}

TEST_F(OutputWriterTest, SetsAreBalanced) {
  const auto spread = [](const std::vector<std::uint64_t>& of) {
    return *std::max_element(of.begin(), of.end()) - *std::min_element(of.begin(), of.end());
  };
  for (const int ranks : {2, 3, 4})
    for (const bool linears_first : {false, true}) {
      std::vector<std::uint64_t> bytes, packed;
      std::uint64_t sum = 0, total = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        OutputWriter::Options division = options(rank, ranks, ranks);
        division.linears_first = linears_first;
        const auto writer = open(division);
        bytes.push_back(own_bytes(*writer));
        packed.push_back(own_bytes(*writer, "weight_packed"));
        sum += bytes.back();
        total = writer->total_bytes();
      }
      EXPECT_EQ(sum, total);
      if (linears_first)
        EXPECT_LT(spread(packed), 3100u) << ranks;  // the largest linear has 3072 bytes of codes
      else
        EXPECT_LT(spread(bytes), total / ranks / 20) << ranks;
      fs::remove_all(folder_ / "out");
    }
}

TEST_F(OutputWriterTest, AnotherNumberOfRanksGoesOn) {
  for (const int later : {1, 2, 3, 5}) {
    {
      const auto writers = begin(3);
      for (int rank = 0; rank < 3; ++rank) work(*writers[rank], rank, rank == 2 ? 2 : 3);  // rank 2 is killed earlier
    }
    const auto writers = go_on(later);
    for (int rank = 0; rank < later; ++rank) {
      const OutputWriter& writer = *writers[rank];
      EXPECT_EQ(std::count(writer.finished().begin(), writer.finished().end(), true), 2);
      EXPECT_TRUE(writer.finished()[0] && writer.finished()[1]);
      const Json mine = {{"rank", rank}, {"subgraph", 1}};
      EXPECT_EQ(writer.boundary(1), later == 3 ? mine : Json()) << later;
      EXPECT_TRUE(writer.boundary(2).is_null());
    }
    complete(writers);
    expect_complete();
    expect_every_report_once(writers);
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(OutputWriterTest, GoesOnAgainAndAgain) {
  for (int rank = 0; const auto& writer : begin(2)) work(*writer, rank++, 1);
  for (int rank = 0; const auto& writer : go_on(3)) work(*writer, rank++, 2);
  {
    const auto alone = go_on(1);
    EXPECT_FALSE(fs::exists(folder_ / "out" / Journal::file_name(1)));  // taken over
    EXPECT_EQ(Journal::read_all(folder_ / "out").size(), 3u);
    work(*alone[0], 0, 4);
  }
  const auto writers = go_on(1);
  EXPECT_EQ(writers[0]->boundary(3), (Json{{"rank", 0}, {"subgraph", 3}}));
  EXPECT_TRUE(writers[0]->boundary(1).is_null());
  complete(writers);
  expect_complete();
  expect_every_report_once(writers);
}

TEST_F(OutputWriterTest, WhatOneFindsDamagedAllDoAgain) {
  for (int rank = 0; const auto& writer : begin(2)) work(*writer, rank++, subgraphs_.size());
  ASSERT_EQ(Journal::read_all(folder_ / "out").size(), subgraphs_.size() + 1);
  constexpr std::size_t damaged = 3;
  graph::NodeId linear = 0;  // that the second rank owns
  for (const graph::NodeId n : subgraphs_[damaged].nodes)
    if (assignments_.linears.count(n) != 0 && open_again(1, 2, 2)->owns(n)) linear = n;
  damage(module_name(linear) + ".weight_scale");
  const auto writers = go_on(2, 1);
  for (const auto& writer : writers) {
    EXPECT_FALSE(writer->finished()[damaged]);
    EXPECT_EQ(writer->records().size(), subgraphs_.size() - 1);
    EXPECT_TRUE(writer->boundary(damaged).is_null());
  }
  EXPECT_EQ(Journal::read_all(folder_ / "out").size(), subgraphs_.size());
  complete(writers);
  expect_complete();
  expect_every_report_once(writers);
}

TEST_F(OutputWriterTest, RecordsThatProveTooLittleAreNotBelieved) {
  for (int rank = 0; const auto& writer : begin(2)) work(*writer, rank++, 3);
  const std::vector<Json> records = Journal::read_all(folder_ / "out");
  const auto accepted = [&](const Json& damage) {  // to the second subgraph's record
    std::vector<Json> damaged = records;
    for (const auto& [key, value] : damage.items()) damaged[2][key] = value;
    const auto writer = open_again(0, 2, 2);
    writer->accept(damaged);
    EXPECT_TRUE(writer->finished()[0]) << damage;
    return writer->finished()[1];
  };
  EXPECT_TRUE(accepted(Json::object()));
  for (const Json& sets : {Json{0}, Json{0, 2}, Json::array(), Json("all"), Json()})
    EXPECT_FALSE(accepted({{"sets", sets}}));
  Json fewer = records[2]["tensors"], more = fewer, unknown = fewer;
  fewer.erase("model.layers.0.mlp.down_proj.weight_scale");
  more.update(records[3]["tensors"]);
  unknown["none"] = "00";
  for (const Json& tensors : {fewer, more, unknown, records[1]["tensors"], Json("x")})
    EXPECT_FALSE(accepted({{"tensors", tensors}}));
  EXPECT_FALSE(accepted({{"modules", nullptr}}));
  EXPECT_FALSE(accepted({{"index", 1000}}));
}

TEST_F(OutputWriterTest, TheFirstRankClearsUp) {
  for (int rank = 0; const auto& writer : begin(2)) work(*writer, rank++, 2);
  const fs::path out = folder_ / "out";
  for (const char* name : {"out/x.tmp.17", "out/notes/inside", "out/.activations", "out/.activations-1"})
    folder_.write(name, "left");
  open_again(1, 2, 2);
  EXPECT_TRUE(fs::exists(out / "x.tmp.17"));
  const auto first = open_again(0, 2, 2);
  EXPECT_FALSE(fs::exists(out / "x.tmp.17") || fs::exists(out / "notes"));
  for (const char* name : {".activations", ".activations-1"}) EXPECT_TRUE(fs::exists(out / name));
  for (const int rank : {0, 1}) EXPECT_TRUE(fs::exists(out / Journal::file_name(rank)));
  for (const std::string& name : first->file_names()) EXPECT_TRUE(fs::exists(out / name));
  OutputWriter::remove_scratch(out);
  for (const char* name : {".activations", ".activations-1"}) EXPECT_FALSE(fs::exists(out / name));
  EXPECT_TRUE(fs::exists(out / Journal::file_name(1)));
}

TEST_F(OutputWriterTest, WeightsOfFinishedSubgraphsComeFromAllSets) {
  for (int rank = 0; const auto& writer : begin(3)) work(*writer, rank++, 3);  // the embedding and two layers
  const auto writers = go_on(2);
  for (const auto& writer : writers) {
    const ResumedWeights weights(model_, assignments_, subgraphs_, *writer, at::kFloat);
    int compressed = 0;
    for (const auto& [n, result] : results_) {
      const std::string& name = std::get<graph::Linear>(model_.traced.graph.nodes[n].operation).weight;
      if (weights.is_original(name)) continue;
      EXPECT_TRUE(at::equal(weights.load(name), quant::dequantize(scheme_, result.weight, at::kFloat))) << name;
      ++compressed;
    }
    EXPECT_EQ(compressed, 2 * 7);
  }
}

TEST_F(OutputWriterTest, ADiskThatIsTooSmallIsNoticedByWhoeverNeedsIt) {
  const test::FileSizeLimit limit(4096);
  for (const int rank : {0, 1})
    test::expect_says(test::message_of<IoError>([&] { open(options(rank, 2, 2)); }),
                      {"model-0000", "cannot reserve", "free some space"});
  EXPECT_NO_THROW(open(options(2, 3, 2)));  // which has no set
}

}  // namespace
}  // namespace layerpress::output
