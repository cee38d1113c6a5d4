#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::fuzz {

/// Before the first input: one thread, no messages of libraries, files in memory.
void prepare_process();

/// Gives an input to a target. Throws what is a finding.
void feed(void (*target)(std::string_view input), std::string_view input);

/// Throws the exception of a finding unless `holds`.
void require(bool holds, const std::string& what);

/// Replaces a file of this process's folder, which is in memory if the system has such folders, and returns its path.
std::filesystem::path write_input(const std::string& name, std::string_view bytes);

/// The folder of write_input.
const std::filesystem::path& input_folder();

/// The text before the first newline, and what follows it.
std::pair<std::string_view, std::string_view> first_line(std::string_view input);

/// All lines; the last one need not end.
std::vector<std::string_view> lines_of(std::string_view input);

/// A safetensors file: of a JSON header on the first line and data behind it, its length before them; else the input as it is.
std::string safetensors_of(std::string_view input);

/// JSON of an input that is no file of its own; null if it is none.
Json described(std::string_view input);

}  // namespace layerpress::fuzz
