#include "layerpress/setup/opening/rewriting.h"

#include <map>
#include <string>
#include <utility>

namespace layerpress::setup {

void apply(const rewrite::Changes& changes, OpenedModel& model) {
  rewrite::Model& base = model;
  base = rewrite::rewritten(std::move(base), changes);
  std::map<std::string, source::StoredWeight> copies;
  for (const auto& [name, of] : changes.copies)
    if (const auto quantized = model.quantized.find(of); quantized != model.quantized.end()) {
      copies.insert_or_assign(name, quantized->second).first->second.name = name;
    }
  for (const auto& [name, of] : changes.copies) model.quantized.erase(name);
  for (auto& [name, copy] : copies) model.quantized.insert_or_assign(name, std::move(copy));
  for (const std::string& name : changes.removed) model.quantized.erase(name);
  if (changes.config.contains("tie_word_embeddings")) model.traced.tied_head = changes.config["tie_word_embeddings"];
  if (!changes.text.empty()) model.rewrites.push_back(changes.text);
}

}  // namespace layerpress::setup
