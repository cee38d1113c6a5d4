#pragma once

namespace layerpress {

// The help of options that several commands have.

inline const char* model_graph_help() {
  return "builtin (an architecture that Layerpress knows), export (the graph that PyTorch exports of transformers' "
         "model) "
         "or auto: builtin where there is one";
}

inline const char* download_help() {
  return "fetch what the local Hugging Face cache lacks of a model that is named by its id";
}

inline const char* trust_remote_code_help() {
  return "let a model's own Python code in its folder run when its graph is exported";
}

}  // namespace layerpress
