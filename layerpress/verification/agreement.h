#pragma once

#include <map>
#include <string>

#include "layerpress/setup/opening/open_model.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// What is checked: a checkpoint's tensors as they are stored, those of them that are quantized, and the model that they belong to. Refers to
/// what it is made of.
struct Subject {
  const checkpoint::Checkpoint& stored;
  const std::map<std::string, source::StoredWeight>& quantized;  ///< by weight name
  const model::TracedModel& traced;
};

/// What config.json says of a compressed-tensors checkpoint against the tensors that are there: modules that a group names, and no others, are
/// stored quantized, static scales of inputs are there, and vLLM finds the same group for each module. Says nothing of others.
void check_config(const Subject& subject, Findings& findings);

/// The same for static scales of keys and values.
void check_attentions(const setup::OpenedModel& model, Findings& findings);

/// What engines run as one is stored in one scheme, with one global scale: q/k/v, gate/up, the experts of a layer.
void check_fused(const Subject& subject, Findings& findings);

/// No weight is stored both quantized and plain.
void check_doubles(const Subject& subject, Findings& findings);

/// A head that is stored and differs from the embedding is said in config.json.
void check_head(const setup::OpenedModel& model, Findings& findings);

/// No more layers are stored than config.json describes, but for layers for multi-token prediction.
void check_layers(const Subject& subject, Findings& findings);

/// Routers are not quantized: vLLM loads them plain.
void check_routers(const Subject& subject, Findings& findings);

}  // namespace layerpress::verification
