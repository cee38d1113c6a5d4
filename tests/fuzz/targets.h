#pragma once

#include <string_view>

namespace layerpress::fuzz {

// A target reads an input as the program reads a file of that kind, and uses what it has read. An input may be refused with an Error
// of one line; everything else (another exception, an InternalError, a fault that a sanitizer sees, a hang, much memory) is a finding.

void checkpoint_index(std::string_view input);     ///< model.safetensors.index.json
void dataset_rows(std::string_view input);         ///< .jsonl and .json with token ids
void gguf_model(std::string_view input);           ///< a GGUF as a model
void graph_file(std::string_view input);           ///< graph.json and constants.safetensors of an exported graph
void hub_answers(std::string_view input);          ///< lines of the hub's helper
void hub_cache(std::string_view input);            ///< an id, and refs of the hub's cache
void importance_file(std::string_view input);      ///< --from-imatrix
void model_config(std::string_view input);         ///< config.json, of every architecture
void name_patterns(std::string_view input);        ///< `re:` patterns on the first line, names on the others
void quantization_config(std::string_view input);  ///< config.json of a quantized checkpoint, and its tensors
void recipe_json(std::string_view input);
void recipe_yaml(std::string_view input);
void run_folder(std::string_view input);  ///< journals of two ranks
void safetensors_file(std::string_view input);
void token_file(std::string_view input);
void tokenizer_folder(std::string_view input);  ///< tokenizer.json, tokenizer_config.json and tokenizer.model

}  // namespace layerpress::fuzz
