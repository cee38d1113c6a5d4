#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "layerpress/execution/batch_images.h"
#include "layerpress/execution/expert_contributions.h"
#include "layerpress/execution/expert_survey.h"
#include "layerpress/execution/rotary_tables.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Whole samples packed along the token axis.
struct Batch {
  at::Tensor token_ids;                  ///< int64 [tokens], on the CPU
  std::vector<std::int64_t> offsets{0};  ///< samples + 1; sample i is tokens [offsets[i], offsets[i + 1])
  std::vector<std::int64_t> places{};    ///< of the samples among those of all ranks
  /// Places of the tokens that count in statistics, int64 on the CPU, and how many they are. Undefined and nothing: all count.
  at::Tensor counted{};
  std::optional<std::int64_t> counted_tokens{};

  BatchImages images{};  ///< of the samples; empty for a model without images
  /// Rows that replace the embeddings of a sample's tokens: places int64 [rows] in the sample, values [rows, features], and
  /// what layers add there, [rows, layers, features] or undefined; on the CPU. Undefined for a sample without images.
  struct Embeddings {
    at::Tensor places, values, added;
    std::vector<std::array<std::int64_t, 2>> spans{};  ///< tokens [first, last) of the sample that see each other
  };
  std::vector<Embeddings> embeddings{};  ///< of each sample; empty if no sample has some
  at::Tensor
      positions{};  ///< int64 [axes, tokens] on the CPU of a model with several positions for a token, else undefined

  std::int64_t tokens() const { return offsets.back(); }
  /// Of each token in its sample, from 0: int64 [tokens] on the CPU.
  at::Tensor counted_positions() const;
  /// Only those tokens for which the mask is not 0 count.
  void count_only(const std::vector<std::uint8_t>& mask);
  /// Rows of a value; at most as many where tokens are selected.
  std::int64_t rows(graph::Rows rows) const {
    if (rows == graph::Rows::kIllustrated) return images.illustrated_tokens(offsets);
    if (rows == graph::Rows::kPatches) return images.patch_rows();
    return rows == graph::Rows::kVision ? images.vision_rows() : tokens();
  }
};

/// Data that nodes need of a batch besides their inputs, derived on demand and kept while one stage runs on the batch.
class BatchContext {
 public:
  /// Refers to all of them.
  BatchContext(const Batch& batch, const graph::Graph& graph, const residency::Placement& placement,
               RotaryTables& rotary_tables)
      : batch_(batch), graph_(graph), placement_(placement), rotary_tables_(rotary_tables) {}

  const Batch& batch() const { return batch_; }
  const graph::Graph& graph() const { return graph_; }
  at::Tensor token_ids() const;
  /// Of each token in its sample, from 0: [tokens], or as the batch has them.
  at::Tensor positions() const;
  const residency::Placement& placement() const { return placement_; }

  /// cosine and sine: fp32 [rows, pairs], rounded to the computing dtype as transformers does; rows: int64 [tokens].
  struct Angles {
    at::Tensor cosine, sine, rows;
  };
  const Angles& angles(std::int64_t table);

  /// The patches for the embedding, in the computing dtype.
  at::Tensor pixels(const graph::PatchEmbedding& embedding) const {
    return unfolded_pixels(batch_.images, embedding, placement_.device, placement_.dtype);
  }
  const ImageRows& image_rows() {
    if (!image_rows_) image_rows_ = execution::image_rows(batch_, placement_.device);
    return *image_rows_;
  }

  /// The surveys that say which additional tokens experts get; null: none.
  void use_surveys(const ExpertSurveys* surveys) { surveys_ = surveys; }
  /// Tokens with at least this score are selected for an expert of the router with the value `routing`.
  float least_score(graph::ValueId routing, std::int64_t expert) const;

  /// Where experts add what they contribute to their layer's output; null: nowhere.
  void measure(ExpertContributions* contributions) { contributions_ = contributions; }
  ExpertContributions* contributions() const { return contributions_; }

 private:
  const Batch& batch_;
  const graph::Graph& graph_;
  residency::Placement placement_;
  RotaryTables& rotary_tables_;
  std::map<std::int64_t, Angles> angles_;
  std::optional<ImageRows> image_rows_;
  const ExpertSurveys* surveys_ = nullptr;
  ExpertContributions* contributions_ = nullptr;
};

}  // namespace layerpress::execution
