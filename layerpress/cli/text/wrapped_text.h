#pragma once

#include <algorithm>
#include <sstream>
#include <string>

namespace layerpress::cli {

/// Where lines of text stand.
struct Margins {
  std::size_t indent = 0;    ///< spaces before each line
  std::size_t columns = 80;  ///< at most this many with them
};

/// The words of `text` in lines within the margins. The first line is continued at `column`.
inline std::string wrapped_words(const std::string& text, std::size_t column, const Margins& margins) {
  std::istringstream words(text);
  std::string result;
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > margins.columns) {
      result += "\n";
      column = 0;
    } else if (!first) {
      result += " ";
      ++column;
    }
    if (column < margins.indent) result += std::string(margins.indent - column, ' ');
    column = std::max(column, margins.indent) + word.size();
    result += word;
  }
  return result + "\n";
}

}  // namespace layerpress::cli
