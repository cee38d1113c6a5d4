#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Several loaders that divide one dataset; implemented by whoever connects them.
class LoaderGroup {
 public:
  virtual ~LoaderGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The numbers of all loaders, in the order of ranks; each may give as many as it likes.
  virtual std::vector<std::vector<std::int64_t>> all_gather(const std::vector<std::int64_t>& own) = 0;
};

/// This loader's part of the calibration set that load_samples makes from `options`: all parts together are that set,
/// every sample once, each part in the set's order. A group of one gets what load_samples gives.
///
/// Rows are divided first, so each loader reads and tokenizes only its own: rank r of R takes rows floor(N r / R) to
/// floor(N (r + 1) / R) of the N first of the (sliced, seeded) order. Rows without tokens are made good for by the rows
/// behind, divided likewise, until there are N samples or no more rows; no row is read that load_samples does not read.
/// Where that leaves a rank with more tokens than others, or with samples and others without, samples are dealt anew, longest
/// first, each to the rank with the fewest tokens that may take one more; counts differ by at most one.
/// - Samples with images stay with the rank that made them.
/// - A token file, whose lengths are known beforehand, is dealt like that from the start.
/// - With `concatenate`, samples cross rows: rows are read in windows as large as the token count still missing
///   suggests, their tokens are exchanged, and rank r keeps samples floor(S r / R) to floor(S (r + 1) / R) of the S
///   that the joined stream gives. The last window may hold rows behind those that are needed, which have to be
///   well-formed too.
///
/// A part may be empty; a loader without rows starts no helper. All loaders call this at once with the same options;
/// one that throws leaves the others waiting in all_gather. Throws as load_samples; what concerns the whole set ("gives
/// no samples") is thrown by all, and only rank 0 warns of fewer samples than asked for. Each loader checks its own
/// tokens against the vocabulary.
CalibrationSet load_partition(const DatasetOptions& options, const std::filesystem::path& model_directory,
                              std::int64_t vocabulary_size, LoaderGroup& group, const RunControl& control);

}  // namespace layerpress::data
