#include "layerpress/gguf/tokenizers/special_tokens.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <system_error>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"

namespace layerpress::gguf {
namespace {

Json read_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return Json::object();
  Json read = read_json_file(file);
  if (!read.is_object()) throw CheckpointError("[gguf.tokenizer] {}: not a JSON object", file.filename().string());
  return read;
}

/// The text of an entry "bos_token": a text, or an object with one.
std::string token_text(const Json& file, const std::string& key) {
  const auto found = file.find(key);
  if (found == file.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return "";
}

/// The token of a role, such as "bos": what the tokenizer's files say, else config.json's id; -1 if there is none.
std::int64_t token_of_role(const TokenizerFiles& files, const Vocabulary& vocabulary, const std::string& role) {
  for (const Json* file : {&files.tokenizer_config, &files.special_tokens}) {
    if (const std::string text = token_text(*file, role + "_token"); !text.empty())
      if (const std::int64_t id = vocabulary.find(text); id >= 0) return id;
  }
  for (const Json& config : {files.model_config, files.model_config.value("text_config", Json::object())}) {
    const auto found = config.find(role + "_token_id");
    if (found == config.end() || !found->is_number_integer()) continue;
    const auto id = json_integer(*found);
    if (id >= 0 && id < static_cast<std::int64_t>(vocabulary.tokens().size())) return id;
  }
  return -1;
}

/// The token at one end of the template that tokenizer.json puts around a text; "" for the text itself.
std::string template_end(const Json& part) {
  const auto found = part.find("SpecialToken");
  return found != part.end() && found->is_object() ? token_text({{"token", found->value("id", Json())}}, "token") : "";
}

/// Whether tokenizer.json puts the given tokens around a text; nothing where it does not say.
struct Ends {
  std::optional<bool> begins{}, ends{};
  std::vector<std::string> around{};  ///< all special tokens that it puts around a text
};

/// The parts that a step puts together, a text and tokens around it. Throws CheckpointError if it is of an unknown type.
std::vector<Json> template_parts(const Json& step, const std::string& type) {
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return json_get<std::vector<Json>>(step, "single", kTokenizerFile);
  if (type != "RobertaProcessing" && type != "BertProcessing")
    throw CheckpointError(
        "[gguf.tokenizer] tokenizer.json: a post-processor of type {}, which may add tokens to texts that llama.cpp "
        "does not; write compressed-tensors instead",
        type);
  const auto token = [&](const char* role) {
    const auto pair = json_get<std::vector<Json>>(step, role, kTokenizerFile);
    return Json{{"SpecialToken", {{"id", pair.empty() ? Json() : pair.front()}}}};
  };
  return {token("cls"), {{"Sequence", {{"id", "A"}}}}, token("sep")};
}

Ends ends_of_texts(const Json& tokenizer, const std::string& first, const std::string& last) {
  Ends result;
  if (!json_has(tokenizer, "post_processor")) return result;
  const Json& whole = tokenizer["post_processor"];
  const Json steps = whole.contains("processors") ? whole["processors"] : Json::array({whole});
  for (const Json& step : steps) {
    const auto type = json_get<std::string>(step, "type", kTokenizerFile);
    if (type == "ByteLevel") {
      result.begins = result.begins.value_or(false);
      result.ends = result.ends.value_or(false);
    }
    const std::vector<Json> parts = template_parts(step, type);
    if (parts.size() < 2) continue;
    for (const Json& part : parts)
      if (const std::string token = template_end(part); !token.empty()) result.around.push_back(token);
    if (const std::string token = template_end(parts.front()); !token.empty()) result.begins = token == first;
    if (const std::string token = template_end(parts.back()); !token.empty()) result.ends = token == last;
  }
  return result;
}

bool config_flag(const TokenizerFiles& files, const char* key, bool otherwise) {
  const auto found = files.tokenizer_config.find(key);
  return found != files.tokenizer_config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

void add_template(const std::string& key, const Json& text, Metadata& metadata) {
  if (!text.is_string()) throw CheckpointError("[gguf.tokenizer] tokenizer_config.json: a chat template is no text");
  metadata.emplace_back(key, text.get<std::string>());
}

/// In keys, other characters than letters and digits become underscores, as the `gguf` package writes them.
std::string key_part(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c > 127 || std::isalnum(c) == 0; }, '_');
  return name;
}

/// A list of templates with names.
void add_named_templates(const Json& templates, Metadata& metadata) {
  std::vector<std::string> names;
  for (const Json& entry : templates) {
    const auto name = json_get<std::string>(entry, "name", "tokenizer_config.json: chat_template");
    const Json text = json_get<Json>(entry, "template", "tokenizer_config.json: chat_template");
    if (name == "default") {
      add_template("tokenizer.chat_template", text, metadata);
    } else {
      names.push_back(key_part(name));
      add_template("tokenizer.chat_template." + names.back(), text, metadata);
    }
  }
  if (!names.empty()) metadata.emplace_back("tokenizer.chat_templates", names);
}

/// The files in the folder beside chat_template.jinja, by their names without the ending.
std::map<std::string, std::string> additional_templates(const std::filesystem::path& model_folder) {
  std::map<std::string, std::string> templates;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(model_folder / kTemplatesFolder, failure))
    if (entry.path().extension() == ".jinja" && entry.is_regular_file(failure))
      templates[entry.path().stem().string()] = read_text_file(entry.path());
  return templates;
}

}  // namespace

TokenizerFiles read_tokenizer_files(const std::filesystem::path& model_folder) {
  return {.tokenizer = read_object(model_folder / "tokenizer.json"),
          .tokenizer_config = read_object(model_folder / "tokenizer_config.json"),
          .special_tokens = read_object(model_folder / "special_tokens_map.json"),
          .model_config = read_object(model_folder / "config.json")};
}

std::string add_special_tokens(const TokenizerFiles& files, const Vocabulary& vocabulary, bool begins,
                               Metadata& metadata) {
  static const std::vector<std::pair<std::string, std::string>> kRoles = {
      {"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"sep", "seperator"}, {"pad", "padding"}, {"mask", "mask"}};
  std::map<std::string, std::int64_t> ids;
  for (const auto& [role, name] : kRoles) {
    const std::int64_t id = token_of_role(files, vocabulary, role);
    ids[role] = id;
    if (id >= 0) metadata.emplace_back("tokenizer.ggml." + name + "_token_id", static_cast<std::uint32_t>(id));
  }
  const auto text = [&](const char* role) { return ids[role] < 0 ? "" : vocabulary.tokens()[ids[role]]; };
  const Ends said = ends_of_texts(files.tokenizer, text("bos"), text("eos"));
  // Readers cannot begin a text with a token that there is not.
  const bool adds_first = said.begins.value_or(config_flag(files, "add_bos_token", begins)) && ids["bos"] >= 0;
  const bool adds_last = said.ends.value_or(config_flag(files, "add_eos_token", false)) && ids["eos"] >= 0;
  metadata.emplace_back("tokenizer.ggml.add_bos_token", adds_first);
  metadata.emplace_back("tokenizer.ggml.add_eos_token", adds_last);
  std::vector<std::string> added;
  if (adds_first && !said.begins) added.push_back(text("bos") + " before");
  if (adds_last && !said.ends) added.push_back(text("eos") + " behind");
  std::vector<std::string> ends;
  if (adds_first) ends.push_back(text("bos"));
  if (adds_last) ends.push_back(text("eos"));
  if (said.around.size() > ends.size())
    return fmt::format(
        "tokenizer.json puts {} around texts, of which llama.cpp adds at most one bos and one eos token, here {}; put "
        "the others into the chat template or the prompt",
        join(said.around), ends.empty() ? "none" : join(ends, " and "));
  if (files.tokenizer.empty() || added.empty()) return "";
  return fmt::format(
      "llama.cpp puts {} texts, as tokenizer_config.json says; tokenizer.json does not, so that calibration and "
      "transformers did without",
      join(added));
}

void add_chat_template(const TokenizerFiles& files, const std::filesystem::path& model_folder, Metadata& metadata) {
  if (const auto file = model_folder / "chat_template.jinja"; std::filesystem::exists(file)) {
    Json templates = {{{"name", "default"}, {"template", read_text_file(file)}}};
    for (const auto& [name, text] : additional_templates(model_folder))
      templates.push_back({{"name", name}, {"template", text}});
    return add_named_templates(templates, metadata);
  }
  Json found = files.tokenizer_config.value("chat_template", Json());
  if (found.is_null()) found = read_object(model_folder / "chat_template.json").value("chat_template", Json());
  if (found.is_array()) return add_named_templates(found, metadata);
  if (!found.is_null()) add_template("tokenizer.chat_template", found, metadata);
}

}  // namespace layerpress::gguf
