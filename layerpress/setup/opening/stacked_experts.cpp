#include "layerpress/setup/opening/stacked_experts.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/checkpoint/strict_json.h"
#include "layerpress/setup/opening/quantized_source.h"
#include "layerpress/setup/opening/rewriting.h"

namespace layerpress::setup {
namespace {

using model::StackedTensor;

void require_shape(const OpenedModel& opened, const StackedTensor& stacked, const std::vector<std::int64_t>& shape) {
  if (shape != stacked.shape)
    throw CheckpointError("[checkpoint.open] {}: tensor {} has shape {}, config.json implies {}",
                          opened.stored->location().string(), checkpoint::in_quotes(stacked.name), shape,
                          stacked.shape);
}

/// Calls function(part, members) for each member of each expert.
template <typename Function>
void for_each_part(const StackedTensor& stacked, Function&& function) {
  const std::int64_t outputs = stacked.transposed ? stacked.shape[2] : stacked.shape[1];
  for (std::size_t e = 0; e < stacked.members.size(); ++e) {
    const auto members = static_cast<std::int64_t>(stacked.members[e].size()), count = outputs / members;
    for (std::int64_t m = 0; m < members; ++m) {
      source::ExpertPart part{stacked.members[e][static_cast<std::size_t>(m)], static_cast<std::int64_t>(e)};
      part.first = stacked.alternating ? m : m * count;
      part.count = count;
      part.step = stacked.alternating ? members : 1;
      function(part, members);
    }
  }
}

template <typename Function>
void for_each_tensor(const OpenedModel& opened, Function&& function) {
  for (const std::vector<StackedTensor>& layer : opened.traced.stacked_tensors)
    for (const StackedTensor& stacked : layer) function(stacked);
}

at::Tensor linear_of(const at::Tensor& stacked, const source::ExpertPart& part, bool transposed) {
  const at::Tensor expert = stacked[part.expert];
  const at::Tensor own = expert.slice(transposed ? 1 : 0, part.first, part.first + part.count * part.step, part.step);
  return (transposed ? own.t() : own).contiguous();
}

/// A tensor, still without its computation, that consists of others.
checkpoint::ComputedTensor made_of(const OpenedModel& model, const std::string& name,
                                   const std::vector<std::int64_t>& shape, const std::vector<std::string>& members) {
  checkpoint::ComputedTensor whole{
      .spec = {name, model.checkpoint->spec(members.front()).dtype, shape}, .parts = members, .compute = {}};
  for (const std::string& member : members)
    whole.workspace_bytes = std::max(
        whole.workspace_bytes, model.checkpoint->spec(member).nbytes() + model.checkpoint->workspace_bytes(member));
  return whole;
}

/// The stacked tensor of linears that a rewrite has changed.
checkpoint::ComputedTensor stacked_again(const OpenedModel& model, const StackedTensor& stacked) {
  std::vector<std::string> members;
  for (const std::vector<std::string>& expert : stacked.members)
    members.insert(members.end(), expert.begin(), expert.end());
  checkpoint::ComputedTensor whole = made_of(model, stacked.name, stacked.shape, members);
  whole.compute = [checkpoint = model.checkpoint, stacked, dtype = whole.spec.dtype] {
    at::Tensor made = at::empty(stacked.shape, dtype);
    for_each_part(stacked, [&](const source::ExpertPart& part, std::int64_t) {
      const at::Tensor expert = made[part.expert], own = checkpoint->tensor(part.name);
      expert.slice(stacked.transposed ? 1 : 0, part.first, part.first + part.count * part.step, part.step)
          .copy_(stacked.transposed ? own.t() : own);
    });
    return made;
  };
  return whole;
}

checkpoint::ComputedTensor fused_again(const OpenedModel& model, const checkpoint::FusedTensor& fused) {
  std::vector<std::string> members;
  for (const checkpoint::FusedTensor::Member& member : fused.members) members.push_back(member.name);
  checkpoint::ComputedTensor whole = made_of(model, fused.name, fused.shape, members);
  whole.compute = [checkpoint = model.checkpoint, members, spec = whole.spec] {
    at::Tensor made = at::empty(spec.shape, spec.dtype), rest = made.flatten();
    for (const std::string& member : members) {
      const at::Tensor own = checkpoint->tensor(member);
      rest.narrow(0, 0, own.numel()).copy_(own.flatten());
      rest = rest.narrow(0, own.numel(), rest.numel() - own.numel());
    }
    return made;
  };
  return whole;
}

/// The fused tensors of the checkpoint whose members a rewrite has changed, and nothing else of their layers' experts.
std::vector<checkpoint::FusedTensor> rewritten_fused(const OpenedModel& model, const std::set<std::string>& changed) {
  std::set<std::string> others;  // lists of experts
  std::vector<checkpoint::FusedTensor> found;
  for (const checkpoint::FusedTensor& fused : model.traced.fused_tensors)
    for (const checkpoint::FusedTensor::Member& member : fused.members)
      if (changed.count(member.name) != 0) others.insert(parent_name(fused.name));
  for (const checkpoint::FusedTensor& fused : model.traced.fused_tensors)
    if (model.stored->contains(fused.name) && others.count(parent_name(fused.name)) == 0 &&
        model.rewritten.count(fused.members.front().name) != 0)
      found.push_back(fused);
  return found;
}

/// Whether the output has anything of a layer's experts in another form than the checkpoint.
bool is_touched(const OpenedModel& model, const std::vector<StackedTensor>& layer,
                const std::set<std::string>& changed) {
  const auto differs = [&](const std::string& name) { return changed.count(name) + model.kept.count(name) != 0; };
  for (const StackedTensor& stacked : layer)
    for (const std::vector<std::string>& expert : stacked.members)
      if (std::any_of(expert.begin(), expert.end(), differs)) return true;
  return false;
}

}  // namespace

void divide_quantized_experts(OpenedModel& opened) {
  for_each_tensor(opened, [&](const StackedTensor& stacked) {
    const auto found = opened.quantized.find(stacked.name);
    if (found == opened.quantized.end()) return;
    const source::StoredWeight& whole =
        opened.stacked_quantized.emplace(stacked.name, std::move(found->second)).first->second;
    opened.quantized.erase(found);
    require_shape(opened, stacked, whole.shape);
    if (!whole.part_of_expert)
      throw CheckpointError(
          "[checkpoint.open] {}: {} holds all experts in one quantized tensor, which is not supported",
          opened.stored->location().string(), checkpoint::in_quotes(stacked.name));
    for_each_part(stacked, [&](const source::ExpertPart& part, std::int64_t members) {
      source::StoredWeight own = whole.part_of_expert(part);
      own.sharers = members;
      opened.quantized.emplace(part.name, std::move(own));
    });
  });
}

void divide_stacked_experts(OpenedModel& opened) {
  rewrite::Changes changes;
  for_each_tensor(opened, [&](const StackedTensor& stacked) {
    if (!opened.checkpoint->contains(stacked.name)) return;
    const checkpoint::StoredTensor& stored = opened.checkpoint->spec(stacked.name);
    require_shape(opened, stacked, stored.shape);
    for_each_part(stacked, [&](const source::ExpertPart& part, std::int64_t members) {
      checkpoint::ComputedTensor own;
      own.spec = {part.name, stored.dtype, {part.count}};
      if (stacked.shape.size() == 3) own.spec.shape.push_back(stacked.shape[stacked.transposed ? 1 : 2]);
      own.parts = {stacked.name};
      own.compute = [whole = opened.stored, name = stacked.name, part, transposed = stacked.transposed] {
        return linear_of(whole->tensor(name), part, transposed);
      };
      own.expert = part.expert;
      own.sharers = members;
      changes.computed.push_back(std::move(own));
    });
  });
  apply(changes, opened);
}

void keep_stacked_experts(OpenedModel& model, const compression::Assignments& assignments) {
  const std::set<std::string> changed = assignments.changed(model.traced.graph);
  std::vector<std::string> kept, remade;
  std::vector<checkpoint::ComputedTensor> quantized, again;
  for (const std::vector<StackedTensor>& layer : model.traced.stacked_tensors) {
    const std::string& first = layer.front().name;
    const bool is_stacked = model.stored->contains(first) || model.stacked_quantized.count(first) != 0;
    if (!is_stacked || is_touched(model, layer, changed) || (layer.front().divided && assignments.quantizes()))
      continue;
    for (const StackedTensor& stacked : layer) {
      const bool is_rewritten = model.rewritten.count(stacked.members.front().front()) != 0;
      (is_rewritten ? remade : kept).push_back(stacked.name);
      if (is_rewritten)
        again.push_back(stacked_again(model, stacked));
      else if (const auto found = model.stacked_quantized.find(stacked.name); found != model.stacked_quantized.end())
        quantized.push_back(values_of(found->second, model.checkpoint->spec(stacked.members.front().front()).dtype));
      for (const std::vector<std::string>& expert : stacked.members)
        model.written_stacked.insert(expert.begin(), expert.end());
    }
  }
  for (const checkpoint::FusedTensor& fused : rewritten_fused(model, changed)) {
    remade.push_back(fused.name);
    again.push_back(fused_again(model, fused));
    for (const checkpoint::FusedTensor::Member& member : fused.members) model.written_stacked.insert(member.name);
  }
  if (!remade.empty())
    model.checkpoint = model.checkpoint->with_tensors_of(*model.checkpoint->with_computed(again), remade);
  if (!kept.empty())
    model.checkpoint = model.checkpoint->with_tensors_of(*model.stored->with_computed(quantized), kept);
}

}  // namespace layerpress::setup
