#pragma once

namespace layerpress::dist {

/// The meaning of one rank's end for the other ranks.
enum class FailureKind {
  kError,      ///< something went wrong
  kOnRequest,  ///< a stop was requested
  kHopeless,   ///< none of the work can be used
};

}  // namespace layerpress::dist
