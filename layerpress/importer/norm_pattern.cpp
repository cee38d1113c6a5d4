#include "layerpress/importer/norm_pattern.h"

namespace layerpress::importer {
namespace {

class NormMatch {
 public:
  NormMatch(const ExportedGraph& graph, const Layouts& layouts) : graph_(graph), layouts_(layouts) {}

  std::optional<Lowered> match(const ExportedNode& last) {
    const ExportedNode* product = layouts_.producer(layouts_.uncast(last.out));
    if (product == nullptr || product->op != "aten.mul.Tensor") return std::nullopt;
    const auto first = value_argument(*product, 0), second = value_argument(*product, 1);
    if (!first || !second) return std::nullopt;
    if (!(match_weight(*first) && match_normed(*second)) && !(match_weight(*second) && match_normed(*first)))
      return std::nullopt;
    if (layouts_.type(x_).dtype != graph_.dtype || layouts_.type(last.out).dtype != graph_.dtype ||
        !layouts_.has_rows(x_) || layouts_.last_size(x_) != norm_.size || layouts_.axis(x_) + 1 == rank(x_))
      return std::nullopt;
    const bool rounded_before = layouts_.type(product->out).dtype == graph_.dtype && graph_.dtype != "float32";
    norm_.rounded_once = !rounded_before && (graph_.dtype != "float32" || norm_.weight_offset != 0);
    if (norm_.weight_offset != 0 && !norm_.rounded_once) return std::nullopt;
    return Lowered{norm_, {layouts_.origin(x_)}};
  }

 private:
  std::int64_t rank(std::int64_t value) const { return static_cast<std::int64_t>(layouts_.type(value).shape.size()); }

  bool match_weight(std::int64_t value) {
    value = layouts_.uncast(value);
    norm_.weight_offset = 0;
    if (const ExportedNode* sum = layouts_.producer(value); sum != nullptr) {
      const auto weight = value_argument(*sum, 0);
      const auto offset = number_argument(*sum, 1);
      if (sum->op != "aten.add.Tensor" || !weight || !offset || sum->arguments.size() != 2) return false;
      norm_.weight_offset = *offset;
      value = layouts_.uncast(*weight);
    }
    const auto found = graph_.parameters.find(value);
    if (found == graph_.parameters.end() || !found->second.is_stored() || rank(value) != 1) return false;
    norm_.weight = found->second.sources[0].name;
    norm_.size = layouts_.last_size(value);
    return true;
  }

  /// x * rsqrt(mean(x²) + epsilon).
  bool match_normed(std::int64_t value) {
    const ExportedNode* product = layouts_.producer(layouts_.uncast(value));
    if (product == nullptr || product->op != "aten.mul.Tensor") return false;
    const auto a = value_argument(*product, 0), b = value_argument(*product, 1);
    if (!a || !b) return false;
    return match_factor(*a, *b) || match_factor(*b, *a);
  }

  bool match_factor(std::int64_t x, std::int64_t factor) {
    const ExportedNode* root = layouts_.producer(factor);
    const bool is_root =
        root != nullptr && (root->op == "aten.rsqrt.default" ||
                            (root->op == "aten.pow.Tensor_Scalar" && number_argument(*root, 1) == -0.5));
    const ExportedNode* sum = is_root ? before(*root) : nullptr;
    const auto epsilon = sum == nullptr ? std::nullopt : number_argument(*sum, 1);
    if (sum == nullptr || sum->op != "aten.add.Tensor" || !epsilon || sum->arguments.size() != 2) return false;
    const ExportedNode* mean = before(*sum);
    if (mean == nullptr || mean->op != "aten.mean.dim" || mean->arguments.size() < 3 ||
        mean->arguments[1] != Json::array({-1}) || mean->arguments[2] != Json(true))
      return false;
    const ExportedNode* square = before(*mean);
    const bool is_square =
        square != nullptr && square->op == "aten.pow.Tensor_Scalar" && number_argument(*square, 1) == 2.0;
    const bool is_product = square != nullptr && square->op == "aten.mul.Tensor" && value_argument(*square, 1) == x;
    if ((!is_square && !is_product) || value_argument(*square, 0) != x) return false;
    norm_.epsilon = *epsilon;
    x_ = layouts_.uncast(x);
    return true;
  }

  const ExportedNode* before(const ExportedNode& node) const {
    const auto value = value_argument(node, 0);
    return value ? layouts_.producer(*value) : nullptr;
  }

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  graph::RmsNorm norm_;
  std::int64_t x_ = -1;
};

}  // namespace

std::optional<Lowered> match_rms_norm(const ExportedGraph& graph, const Layouts& layouts, const ExportedNode& node) {
  return NormMatch(graph, layouts).match(node);
}

}  // namespace layerpress::importer
