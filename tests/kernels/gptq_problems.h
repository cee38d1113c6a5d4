#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/gptq.h"

// What the tests of GPTQ's solvers solve.
namespace layerpress::kernels {

/// A weight and a Gram matrix of correlated inputs, with scales per group.
struct Problem {
  at::Tensor weight, gram;
  ColumnScales scales;
};

inline Problem make_problem(std::int64_t rows, std::int64_t columns, std::int64_t group, bool symmetric,
                            double largest) {
  at::manual_seed(7);
  Problem problem;
  problem.weight = at::randn({rows, columns});
  const at::Tensor x = at::randn({4 * columns, columns}).mm(at::eye(columns) + 0.3 * at::randn({columns, columns}));
  problem.gram = at::zeros({columns, columns});
  accumulate_gram(problem.gram, x);
  const at::Tensor groups = problem.weight.view({rows, -1, group});
  if (symmetric) {
    problem.scales.scale = groups.abs().amax(-1) / largest;
  } else {
    const at::Tensor low = groups.amin(-1), high = groups.amax(-1);
    problem.scales.scale = (high - low) / (2 * largest);
    problem.scales.zero_point = (-largest - 0.5 - low / problem.scales.scale).round().clamp(-8, 7);
  }
  problem.scales.columns_per_group = group;
  return problem;
}

/// What solvers are compared on.
struct GptqCase {
  const char* name;
  std::int64_t rows, columns, group;
  bool symmetric, ordered, fp8;
};

inline const std::vector<GptqCase> kGptqCases = {
    {"group", 40, 192, 32, true, true, false},       {"unordered", 33, 160, 32, true, false, false},
    {"asymmetric", 48, 128, 64, false, true, false}, {"channel", 17, 130, 130, true, true, false},
    {"fp8", 32, 96, 96, true, true, true},           {"odd", 70, 77, 7, false, true, false},
    {"many", 40, 1100, 100, true, true, false}};

inline double equal_share(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).to(at::kDouble).mean().item<double>();
}

/// Candidates that differ by more than a rounding.
inline const GroupSearch kSearch{
    .rule = {.element = {}, .signed_scale = true}, .shrink = {1.0, 0.9, 0.8, 0.7, 0.6}, .stored = {ScaleType::kFloat}};

/// A problem whose scales are to be found, and a factor in whose order groups stay together.
struct SearchProblem {
  Problem problem;
  FactorizeOptions options;
  GroupSearch search;

  GptqResult solve() const { return solve(*factorize(problem.gram, options)); }
  GptqResult solve(const HessianFactor& factor) const {
    return gptq({{problem.weight, problem.scales}}, factor, search.rule.element, 128, search);
  }
};

inline SearchProblem make_search_problem(std::int64_t rows, std::int64_t columns, std::int64_t group, bool symmetric,
                                         bool ordered) {
  SearchProblem made{make_problem(rows, columns, columns, symmetric, 7.5), {}, kSearch};
  made.problem.scales.columns_per_group = group;
  // Columns of unlike sizes, so that their order matters.
  const at::Tensor sizes = at::linspace(0.3, 3, columns).index_select(0, at::randperm(columns));
  made.problem.gram = made.problem.gram * sizes.outer(sizes);
  made.options = {.dampening = 0.01, .activation_order = ordered, .group_columns = ordered ? group : 0};
  made.search.rule = {.element = {}, .symmetric = symmetric};
  made.problem.scales.scale = at::full({rows, (columns + group - 1) / group}, NAN);
  if (!symmetric) made.problem.scales.zero_point = at::full_like(made.problem.scales.scale, NAN);
  return made;
}

}  // namespace layerpress::kernels
