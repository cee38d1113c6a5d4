#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/execution/expert_survey.h"
#include "layerpress/execution/operations/experts.h"
#include "layerpress/kernels/layers/linear.h"
#include "tests/dist/thread_ranks.h"

namespace layerpress::execution {
namespace {

graph::Route route_of(std::int64_t experts, std::int64_t top_k) {
  graph::Route op;
  op.experts = experts;
  op.top_k = top_k;
  return op;
}

TEST(Route, WeighsTheBestExperts) {
  const at::Tensor logits = at::log(at::tensor({1.0f, 4.0f, 2.0f, 3.0f}).unsqueeze(0));  // softmax: .1 .4 .2 .3
  graph::Route op = route_of(4, 2);
  EXPECT_TRUE(at::allclose(route(op, logits, {}), at::tensor({0.0f, 0.4f, 0.0f, 0.3f}).unsqueeze(0)));
  op.normalize = true;
  EXPECT_TRUE(at::allclose(route(op, logits, {}), at::tensor({0.0f, 4.0f / 7, 0.0f, 3.0f / 7}).unsqueeze(0)));
  op.scale = 7;
  EXPECT_TRUE(at::allclose(route(op, logits, {}), at::tensor({0.0f, 4.0f, 0.0f, 3.0f}).unsqueeze(0)));
  op = route_of(4, 2);
  op.scores = "chosen_softmax";
  EXPECT_TRUE(at::allclose(route(op, logits, {}), at::tensor({0.0f, 4.0f / 7, 0.0f, 3.0f / 7}).unsqueeze(0)));
}

TEST(Route, ABiasComparesButDoesNotWeigh) {
  graph::Route op = route_of(3, 1);
  op.scores = "sigmoid";
  const at::Tensor logits = at::tensor({2.0f, 1.0f, 0.0f}).unsqueeze(0);
  const at::Tensor routing = route(op, logits, at::tensor({0.0f, 0.0f, 5.0f}));
  EXPECT_TRUE(at::allclose(routing, at::tensor({0.0f, 0.0f, 0.5f}).unsqueeze(0)));
}

TEST(Route, OnlyTheBestGroupsAreLookedAt) {
  graph::Route op = route_of(4, 2);
  op.groups = 2;
  const at::Tensor logits = at::log(at::tensor({5.0f, 1.0f, 4.0f, 3.0f}).unsqueeze(0));
  op.top_groups = 1;
  EXPECT_TRUE(at::equal(route(op, logits, {}).ne(0).to(at::kInt), at::tensor({1, 1, 0, 0}, at::kInt).unsqueeze(0)));
  op.group_score = "top2";
  EXPECT_TRUE(at::equal(route(op, logits, {}).ne(0).to(at::kInt), at::tensor({0, 0, 1, 1}, at::kInt).unsqueeze(0)));
}

/// Scores of 3 experts for 6 tokens; each goes to its best. Nobody goes to the last.
at::Tensor some_logits() {
  const at::Tensor scores = at::tensor({0.8f, 0.1f, 0.1f, 0.6f, 0.1f, 0.3f, 0.5f, 0.3f, 0.2f,  //
                                        0.2f, 0.6f, 0.2f, 0.9f, 0.05f, 0.05f, 0.4f, 0.2f, 0.4f});
  return at::log(scores.view({6, 3}));
}

TEST(ExpertSurvey, FillsUpWithTheHighestScores) {
  const at::Tensor logits = some_logits(), routing = route(route_of(3, 1), logits, {});
  ExpertSurvey survey(3, 3);
  survey.add(logits.slice(0, 0, 4), routing.slice(0, 0, 4));
  survey.add(logits.slice(0, 4), routing.slice(0, 4));
  dist::Group alone;
  survey.merge(alone);
  const at::Tensor x = at::arange(6, at::kFloat).unsqueeze(1);
  const auto rows = [&](std::int64_t expert) {
    graph::SelectTokens op{{expert, 3}};
    return select_tokens(op, x, logits, routing, survey.least_score(expert)).squeeze(1);
  };
  const at::Tensor chosen = routing.ne(0).sum(0);
  EXPECT_TRUE(at::equal(survey.routed(), chosen));
  EXPECT_EQ(rows(0).numel(), chosen[0].item<std::int64_t>());  // has enough: nothing is added
  EXPECT_TRUE(at::equal(rows(1), at::tensor({2.0f, 3.0f, 5.0f})));
  EXPECT_EQ(rows(2).numel(), 3);
  EXPECT_GE(survey.least_score(2), 0.2f - 1e-6f);
}

TEST(ExpertSurvey, MoreThanThereAreTakesAll) {
  const at::Tensor logits = some_logits(), routing = route(route_of(3, 1), logits, {});
  ExpertSurvey survey(3, 100);
  survey.add(logits, routing);
  dist::Group alone;
  survey.merge(alone);
  const graph::SelectTokens op{{2, 3}};
  EXPECT_EQ(select_tokens(op, at::ones({6, 1}), logits, routing, survey.least_score(2)).size(0), 6);
}

/// Rows of some tokens that the survey gave an expert beside its own.
TEST(TakeRouted, FindsRoutedRowsAmongAllAndAmongSelected) {
  const at::Tensor logits = some_logits(), routing = route(route_of(3, 1), logits, {});
  const at::Tensor x = at::arange(6, at::kFloat).unsqueeze(1);
  const float least_score = 0.2f;  // adds tokens 3 and 5 to expert 1's, or one of them
  for (std::int64_t expert = 0; expert < 3; ++expert) {
    const at::Tensor own = x.index_select(0, routing.select(1, expert).nonzero().squeeze(1));
    const at::Tensor selected = select_tokens({{expert, 3}}, x, logits, routing, least_score);
    EXPECT_GE(selected.size(0), own.size(0));
    const graph::TakeRouted op{{expert, 3}};
    const at::Tensor of_all = routed_places(op, logits, routing, /*of_selected=*/false, least_score);
    const at::Tensor of_selected = routed_places(op, logits, routing, /*of_selected=*/true, least_score);
    EXPECT_TRUE(at::equal(take_rows(x, of_all), own));
    EXPECT_TRUE(at::equal(take_rows(selected, of_selected), own));
  }
}

TEST(TakeRouted, RowsTakenBeforeTheProductsAreThoseTakenAfter) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t count : {0, 1, 37, 2100}) {  // more than are computed at once, too
      const at::Tensor x = at::randn({2200, 64}).to(dtype), gate = (at::randn({48, 64}) / 8).to(dtype),
                       up = (at::randn({48, 64}) / 8).to(dtype);
      const at::Tensor places = std::get<0>(at::randperm(2200).narrow(0, 0, count).sort());
      const at::Tensor before = gated_rows("silu", x, places, gate, up);
      const at::Tensor after = take_rows(kernels::gated_linear("silu", x, gate, up), places);
      ASSERT_EQ(before.sizes(), after.sizes());
      EXPECT_TRUE(at::equal(before, after));
    }
}

TEST(ExpertSurvey, RanksAgreeWithOneProcess) {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({200, 7}), routing = route(route_of(7, 2), logits, {});
  ExpertSurvey whole(7, 90);
  whole.add(logits, routing);
  dist::Group alone;
  whole.merge(alone);
  // The last rank has no tokens at all.
  const std::vector<std::int64_t> cuts = {0, 13, 200, 200};
  const auto errors = dist::run_ranks(3, [&](dist::Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    ExpertSurvey part(7, 90);
    if (cuts[rank] < cuts[rank + 1])
      part.add(logits.slice(0, cuts[rank], cuts[rank + 1]), routing.slice(0, cuts[rank], cuts[rank + 1]));
    part.merge(group);
    EXPECT_TRUE(at::equal(part.routed(), whole.routed()));
    for (std::int64_t expert = 0; expert < 7; ++expert) EXPECT_EQ(part.least_score(expert), whole.least_score(expert));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

}  // namespace
}  // namespace layerpress::execution
