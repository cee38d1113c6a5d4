#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Several loaders that divide one dataset. The caller implements their communication.
class LoaderGroup {
 public:
  virtual ~LoaderGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The numbers of all loaders, in the order of ranks. Their counts may differ.
  virtual std::vector<std::vector<std::int64_t>> all_gather(const std::vector<std::int64_t>& own) = 0;
};

/// This loader's part of the calibration set that load_samples makes from `options`. The parts together are that set:
/// every sample occurs once, and each part keeps the set's order. A group of one gets the result of load_samples.
///
/// Rows are divided first, so each loader reads and tokenizes only its own: rank r of R takes rows floor(N r / R) to
/// floor(N (r + 1) / R) of the first N of the (sliced, seeded) order. Rows without tokens are replaced by the following
/// rows, divided likewise, until there are N samples or no more rows. No row is read that load_samples would not read.
/// If a rank then has clearly more tokens than others, or if only some ranks have samples, samples are dealt again,
/// longest first, each to the rank with the fewest tokens; counts differ by at most one.
/// - Samples with images stay with the rank that read them.
/// - A token file, whose lengths are known beforehand, is dealt like this from the start.
/// - With `concatenate`, samples span rows. Rows are read in windows sized by the number of missing tokens, and their
///   tokens are exchanged. Rank r keeps samples floor(S r / R) to floor(S (r + 1) / R) of the S samples of the joined
///   stream. The last window may contain more rows than needed; these must be well-formed, too.
///
/// A part may be empty; a loader without rows starts no helper. All loaders call this together with the same options;
/// if one throws, the others keep waiting in all_gather. Throws like load_samples. Errors about the whole set ("gives
/// no samples") are thrown by all loaders, and only rank 0 warns about fewer samples than requested. Each loader checks
/// its own tokens against the vocabulary.
CalibrationSet load_partition(const DatasetOptions& options, const std::filesystem::path& model_directory,
                              std::int64_t vocabulary_size, LoaderGroup& group, const RunControl& control);

}  // namespace layerpress::data
