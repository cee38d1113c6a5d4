#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace layerpress {

/// The kind of an error, just specific enough to choose an exit code.
enum class ErrorKind { kUsage, kIo, kCheckpoint, kRecipe, kData, kMemory, kDistributed, kInterrupted, kInternal };

/// A text for a message, in valid UTF-8: control characters become '?', other bytes that are no text the replacement character, and what is
/// longer than any message needs is left out. Names from files have everything.
std::string one_line(std::string text);

/// Base of all exceptions that Layerpress throws. The message is one line: `[room.function] where: what; what to do`.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(one_line(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// One exception class per kind; the constructor formats its message with fmt.
template <ErrorKind kKind>
class KindError : public Error {
 public:
  template <typename... Arguments>
  explicit KindError(fmt::format_string<Arguments...> format, Arguments&&... arguments)
      : Error(kKind, fmt::format(format, std::forward<Arguments>(arguments)...)) {}
};

using UsageError = KindError<ErrorKind::kUsage>;  ///< The caller asked for something impossible (exit code 2).
using IoError = KindError<ErrorKind::kIo>;        ///< A file or folder cannot be opened, read or written.
using CheckpointError =
    KindError<ErrorKind::kCheckpoint>;              ///< The contents of a model folder are damaged or unsupported.
using RecipeError = KindError<ErrorKind::kRecipe>;  ///< A recipe is malformed or names something unknown.
using DataError = KindError<ErrorKind::kData>;      ///< Calibration or evaluation data cannot be used.
using MemoryError = KindError<ErrorKind::kMemory>;  ///< The work does not fit in memory.
using DistributedError = KindError<ErrorKind::kDistributed>;  ///< Ranks cannot agree, or one of them failed.
using InterruptedError = KindError<ErrorKind::kInterrupted>;  ///< SIGINT or SIGTERM asked the work to stop.

/// A model's weights hold values that compression cannot handle, such as NaN. Resuming such a run is pointless.
class DamagedWeightsError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A model folder has a form that nothing here reads, which need not be wrong.
class UnsupportedError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

using InternalError = KindError<ErrorKind::kInternal>;  ///< A bug in Layerpress; never caused by input.

}  // namespace layerpress
