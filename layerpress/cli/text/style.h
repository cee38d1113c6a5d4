#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "layerpress/base/text.h"

namespace layerpress::cli {

enum class Style { kBold, kYellow, kRed };

/// Whether `descriptor` is a terminal that shows styles; the user forbids them by NO_COLOR (https://no-color.org).
inline bool shows_styles(int descriptor) {
  return ::isatty(descriptor) == 1 && environment_variable("NO_COLOR").empty() &&
         environment_variable("TERM") != "dumb";
}

/// The text in a style, or as it is where `descriptor` shows none.
inline std::string styled(const std::string& text, Style style, int descriptor) {
  if (!shows_styles(descriptor)) return text;
  const char* code = style == Style::kRed ? "31" : style == Style::kYellow ? "33" : "1";
  return std::string("\x1b[") + code + "m" + text + "\x1b[0m";
}

/// To standard error. Text that cannot be written there is lost, which ends nothing.
inline void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace layerpress::cli
