#include "layerpress/base/system/child_environment.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

extern char** environ;  // NOLINT: POSIX declares it in no header

namespace layerpress {
namespace {

// RANK and its like tell whose child a process is.
constexpr std::string_view kNames[] = {"PATH",
                                       "HOME",
                                       "USER",
                                       "LOGNAME",
                                       "SHELL",
                                       "TMPDIR",
                                       "TEMP",
                                       "TMP",
                                       "LANG",
                                       "LANGUAGE",
                                       "TZ",
                                       "TERM",
                                       "NO_COLOR",
                                       "DO_NOT_TRACK",
                                       "HTTP_PROXY",
                                       "HTTPS_PROXY",
                                       "ALL_PROXY",
                                       "NO_PROXY",
                                       "http_proxy",
                                       "https_proxy",
                                       "all_proxy",
                                       "no_proxy",
                                       "SSL_CERT_FILE",
                                       "SSL_CERT_DIR",
                                       "CURL_CA_BUNDLE",
                                       "REQUESTS_CA_BUNDLE",
                                       "VIRTUAL_ENV",
                                       "CONDA_PREFIX",
                                       "RAYON_NUM_THREADS",
                                       "RANK",
                                       "LOCAL_RANK",
                                       "WORLD_SIZE",
                                       "LOCAL_WORLD_SIZE"};
constexpr std::string_view kBeginnings[] = {
    "LC_",       "LD_",   "XDG_",  "PYTHON",   "LAYERPRESS_", "HF_",   "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_",
    "DATASETS_", "TQDM_", "VLLM_", "OMP_",     "GOMP_",       "KMP_",  "MKL_",         "OPENBLAS_",     "CUDA_",
    "NVIDIA_",   "NCCL_", "TORCH", "PYTORCH_", "MALLOC_",     "ASAN_", "LSAN_",        "UBSAN_"};
/// With these, a helper would not find its own modules, or wait for a user at its end.
constexpr std::string_view kHindering[] = {"PYTHONSAFEPATH", "PYTHONINSPECT"};
constexpr std::string_view kHubTokens[] = {"HF_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_HUB_TOKEN",
                                           "HUGGING_FACE_HUB_TOKEN"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_passed_on(std::string_view name, bool with_hub_token) {
  if (has(kHubTokens, name)) return with_hub_token;
  if (has(kHindering, name)) return false;
  return has(kNames, name) || std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                                          [&](std::string_view beginning) { return name.starts_with(beginning); });
}

}  // namespace

std::vector<std::string> child_environment(bool with_hub_token) {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (is_passed_on(text.substr(0, text.find('=')), with_hub_token)) variables.emplace_back(text);
  }
  return variables;
}

}  // namespace layerpress
