#pragma once

namespace layerpress::dist {

/// What the end of one rank means for the others.
enum class FailureKind {
  kError,      ///< something went wrong
  kOnRequest,  ///< somebody asked it to stop
  kHopeless,   ///< nothing that was done can be used
};

}  // namespace layerpress::dist
