#include "layerpress/data/shared_loading.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/data/helper.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/data/row_order.h"
#include "layerpress/data/sample_checks.h"
#include "layerpress/data/sample_selection.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {
namespace {

/// Reads the rows at some positions of the selected order.
using ReadRows = std::function<RowPart(const Positions&)>;

/// The part that one loader keeps, and the totals of all loaders.
struct Part {
  CalibrationSet set;
  std::vector<std::int64_t> numbers;  ///< position of each sample in the whole set, from 0
  SampleCount whole;
};

/// The message of every loader: three numbers (the last one 1 or 0), then the lengths of its samples, or their tokens.
enum Sent : std::size_t { kRows, kSamples, kHasImages, kTokens };

Positions own_part(const Positions& all, const LoaderGroup& group) {
  // floor(count * i / size), computed in two parts because the product may overflow.
  const std::int64_t size = group.size();
  const auto bound = [&](std::int64_t i) { return all.first + all.size() / size * i + all.size() % size * i / size; };
  return {bound(group.rank()), bound(group.rank() + 1)};
}

/// A loader without rows opens no file and starts no process.
RowPart read_own(const ReadRows& read, const Positions& window, const LoaderGroup& group) {
  const Positions own = own_part(window, group);
  return own.size() == 0 ? RowPart{} : read(own);
}

[[noreturn]] void throw_disagreement() {
  throw DistributedError("[data.partition] the ranks exchange different data; start the same program on all of them");
}

std::vector<std::vector<std::int64_t>> gather(LoaderGroup& group, const std::vector<std::int64_t>& own) {
  auto found = group.all_gather(own);
  const auto usable = [](const std::vector<std::int64_t>& sent) {
    return sent.size() >= kTokens && 0 <= sent[kSamples] && sent[kSamples] <= sent[kRows];
  };
  if (std::cmp_not_equal(found.size(), group.size()) || !std::all_of(found.begin(), found.end(), usable))
    throw_disagreement();
  return found;
}

/// A token as it is sent: with a bit above it where it does not count.
constexpr std::int64_t kDoesNotCount = std::int64_t{1} << 32;

void send_tokens(const CalibrationSet& set, std::int64_t first, std::int64_t last, std::vector<std::int64_t>& sent) {
  for (std::int64_t i = first; i < last; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool counts = set.loss_mask.empty() || set.loss_mask[at] != 0;
    sent.push_back(set.tokens[at] + (counts ? 0 : kDoesNotCount));
  }
}

/// Adds one that was received; `masked`: whether only some count.
void receive_token(std::int64_t sent, bool masked, CalibrationSet& set) {
  const std::int64_t token = masked ? sent & (kDoesNotCount - 1) : sent;
  if (sent < 0 || token > std::numeric_limits<std::int32_t>::max() || (masked && sent >= 2 * kDoesNotCount))
    throw DistributedError(
        "[data.partition] a rank sent {}, which is not a token id; start the same program on all of them", sent);
  set.tokens.push_back(static_cast<std::int32_t>(token));
  if (masked) set.loss_mask.push_back(sent < kDoesNotCount ? 1 : 0);
}

void append_samples(Part& part, const CalibrationSet& samples, std::int64_t first_number) {
  part.set.append(samples);
  for (std::int64_t sample = 0; sample < samples.sample_count(); ++sample)
    part.numbers.push_back(first_number + sample);
}

/// Deals samples of these lengths, longest first, each to the rank with the fewest tokens so far whose count allows one
/// more: counts differ by at most one. Returns each sample's rank.
std::vector<int> dealt(const std::vector<std::int64_t>& lengths, int size) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return lengths[a] > lengths[b]; });
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t each = lengths.size() / ranks;
  std::size_t with_one_more = lengths.size() % ranks;
  std::vector<std::int64_t> tokens(ranks, 0);
  std::vector<std::size_t> counts(ranks, 0);
  std::vector<int> owners(lengths.size());
  for (const std::size_t sample : order) {
    std::size_t chosen = ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const bool may_take = counts[rank] < each || (counts[rank] == each && with_one_more > 0);
      if (may_take && (chosen == ranks || tokens[rank] < tokens[chosen])) chosen = rank;
    }
    if (counts[chosen]++ == each) --with_one_more;
    tokens[chosen] += lengths[sample];
    owners[sample] = static_cast<int>(chosen);
  }
  return owners;
}

/// Whether exchanging tokens is worth it: a rank has no samples while others do, or the rank with the most tokens, for
/// which all others wait, would have clearly fewer.
bool is_better(const std::vector<int>& owners, const std::vector<int>& present,
               const std::vector<std::int64_t>& lengths, int size) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size), 0), tokens(counts), wanted(counts);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    ++counts[static_cast<std::size_t>(present[i])];
    tokens[static_cast<std::size_t>(present[i])] += lengths[i];
    wanted[static_cast<std::size_t>(owners[i])] += lengths[i];
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  if (*most - *least > 1) return true;
  constexpr std::int64_t kMostTokens = 32 << 20;  // bounds the memory of an exchange
  constexpr double kClearly = 0.998;
  const auto largest = [](const std::vector<std::int64_t>& of) {
    return static_cast<double>(*std::max_element(of.begin(), of.end()));
  };
  return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) <= kMostTokens &&
         largest(wanted) < kClearly * largest(tokens);
}

/// Samples stay with the rank that tokenized them unless another division is better. Then all ranks exchange tokens,
/// and each keeps its own part. `lengths` and `present` give the length and the current rank of every sample.
void even_out(Part& part, const std::vector<std::int64_t>& lengths, const std::vector<int>& present, bool masked,
              LoaderGroup& group) {
  const std::vector<int> owners = dealt(lengths, group.size());
  if (lengths.empty() || !is_better(owners, present, lengths, group.size())) return;
  std::vector<std::int64_t> sent;
  for (std::size_t i = 0; i < part.numbers.size(); ++i) {
    const std::int64_t first = part.set.sample_offsets[i], last = part.set.sample_offsets[i + 1];
    sent.push_back(part.numbers[i]);
    sent.push_back(last - first);
    send_tokens(part.set, first, last, sent);
  }
  const auto all = group.all_gather(sent);
  std::map<std::int64_t, std::span<const std::int64_t>> samples;
  for (const std::vector<std::int64_t>& received : all)
    for (std::size_t at = 0; at < received.size();) {
      const std::size_t left = received.size() - at;
      if (left < 2 || received[at + 1] <= 0 || std::cmp_greater(received[at + 1], left - 2)) throw_disagreement();
      const auto length = static_cast<std::size_t>(received[at + 1]);
      samples[received[at]] = {received.data() + at + 2, length};
      at += 2 + length;
    }
  part.set = {};
  part.numbers.clear();
  for (std::int64_t number = 0; number < part.whole.samples; ++number) {
    if (owners[static_cast<std::size_t>(number)] != group.rank()) continue;
    part.numbers.push_back(number);
    for (const std::int64_t token : samples[number]) receive_token(token, masked, part.set);
    part.set.sample_offsets.push_back(static_cast<std::int64_t>(part.set.tokens.size()));
  }
}

/// A sample for each row: the first N rows, then as many further rows as were empty.
Part take_rows(const DatasetOptions& options, const ReadRows& read, LoaderGroup& group) {
  Part part;
  std::vector<std::int64_t> lengths;
  std::vector<int> present;
  bool has_images = false;
  Positions window{0, options.num_samples};
  while (true) {
    const RowPart own = read_own(read, window, group);
    std::vector<std::int64_t> sent{own.rows, own.set.sample_count(), own.set.images.empty() ? 0 : 1};
    for (std::size_t i = 0; i + 1 < own.set.sample_offsets.size(); ++i)
      sent.push_back(own.set.sample_offsets[i + 1] - own.set.sample_offsets[i]);
    const auto found = gather(group, sent);
    std::int64_t rows = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& received = found[static_cast<std::size_t>(rank)];
      if (std::cmp_not_equal(received.size() - kTokens, received[kSamples])) throw_disagreement();
      lengths.insert(lengths.end(), received.begin() + kTokens, received.end());
      present.resize(lengths.size(), rank);
      if (rank == group.rank()) append_samples(part, own.set, part.whole.samples);
      rows += received[kRows];
      has_images = has_images || received[kHasImages] != 0;
      part.whole.samples += received[kSamples];
      part.whole.skipped_empty += received[kRows] - received[kSamples];
    }
    const std::int64_t missing = options.num_samples - part.whole.samples;
    if (missing <= 0 || rows < window.size()) break;
    window = {window.last, window.last + missing};
  }
  if (!has_images) even_out(part, lengths, present, options.use_loss_mask, group);  // pixels are too large to exchange
  return part;
}

/// The joined tokens of all rows read so far, the same on every loader.
struct TokenStream {
  CalibrationSet set;  // without samples
  std::int64_t rows = 0;
  std::int64_t skipped_empty = 0;
};

/// The number of rows to read next if `missing` tokens are still needed.
std::int64_t window_rows(const TokenStream& stream, std::int64_t missing, int ranks) {
  constexpr std::int64_t kFirstRowsPerRank = 64;
  constexpr std::int64_t kShortRow = 128;             // tokens; most rows are longer
  constexpr std::int64_t kTokensPerRound = 16 << 20;  // bounds the memory of an exchange
  missing = std::min(missing, kTokensPerRound);
  if (stream.rows == 0) return std::min(kFirstRowsPerRank * ranks, (missing + kShortRow - 1) / kShortRow);
  if (stream.set.tokens.empty()) return 2 * stream.rows;
  // An eighth more than the mean length suggests, so that another round is unlikely.
  const double mean = static_cast<double>(stream.set.tokens.size()) / static_cast<double>(stream.rows);
  return static_cast<std::int64_t>(std::ceil(1.125 * static_cast<double>(missing) / mean));
}

void append_tokens(TokenStream& stream, const std::vector<std::int64_t>& sent, bool masked) {
  for (std::size_t i = kTokens; i < sent.size(); ++i) receive_token(sent[i], masked, stream.set);
  stream.rows += sent[kRows];
  stream.skipped_empty += sent[kRows] - sent[kSamples];
}

/// Reads and exchanges rows until there are `wanted` tokens or no more rows.
TokenStream join_rows(const ReadRows& read, std::int64_t wanted, bool masked, LoaderGroup& group) {
  TokenStream stream;
  Positions window;
  while (stream.rows == window.last && std::cmp_less(stream.set.tokens.size(), wanted)) {
    const std::int64_t missing = wanted - static_cast<std::int64_t>(stream.set.tokens.size());
    window = {window.last, window.last + window_rows(stream, missing, group.size())};
    const RowPart own = read_own(read, window, group);
    std::vector<std::int64_t> sent{own.rows, own.set.sample_count(), 0};
    send_tokens(own.set, 0, static_cast<std::int64_t>(own.set.tokens.size()), sent);
    for (const auto& received : gather(group, sent)) append_tokens(stream, received, masked);
  }
  return stream;
}

/// Samples that span rows, for `concatenate`.
Part cut_stream(const DatasetOptions& options, const ReadRows& read, LoaderGroup& group) {
  const std::int64_t length = options.max_seq_length;
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t wanted = options.num_samples > kLargest / length ? kLargest : options.num_samples * length;
  const TokenStream stream = join_rows(read, wanted, options.use_loss_mask, group);
  Part part;
  part.whole.samples = std::min(options.num_samples, static_cast<std::int64_t>(stream.set.tokens.size()) / length);
  part.whole.skipped_empty = stream.skipped_empty;
  const Positions own = own_part({0, part.whole.samples}, group);
  const auto take = [&](const auto& all, auto& some) {
    if (!all.empty()) some.assign(all.begin() + own.first * length, all.begin() + own.last * length);
  };
  take(stream.set.tokens, part.set.tokens);
  take(stream.set.loss_mask, part.set.loss_mask);
  for (std::int64_t number = own.first; number < own.last; ++number) {
    part.numbers.push_back(number);
    part.set.sample_offsets.push_back(part.set.sample_offsets.back() + length);
  }
  return part;
}

/// Samples of a file that contains their lengths: nothing needs to be exchanged.
Part deal_rows(TokenRows& rows, const DatasetOptions& options, const LoaderGroup& group, const RunControl& control) {
  const RowOrder order(rows, options);
  const std::vector<std::int64_t>& offsets = *rows.offsets();
  std::vector<std::int64_t> lengths;
  while (std::cmp_less(lengths.size(), options.num_samples)) {
    const auto index = order.index(static_cast<std::int64_t>(lengths.size()));
    if (!index || *index >= rows.count()) break;
    const std::int64_t* bounds = &offsets[static_cast<std::size_t>(*index)];
    lengths.push_back(std::min(bounds[1] - bounds[0], options.max_seq_length));
  }
  Part part;
  part.whole.samples = static_cast<std::int64_t>(lengths.size());
  const std::vector<int> owners = dealt(lengths, group.size());
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (owners[i] == group.rank()) part.numbers.push_back(static_cast<std::int64_t>(i));
  for (const std::int64_t sample : part.numbers) {
    control.check_stop();
    append_sample(part.set, row_at(rows, order, sample, options).value(), options.max_seq_length);
  }
  return part;
}

Part load_part(const DatasetOptions& options, const std::filesystem::path& model_directory, LoaderGroup& group,
               const RunControl& control) {
  const auto take = options.concatenate ? cut_stream : take_rows;
  const auto rows = open_token_rows(options.dataset);
  if (!rows) {
    const ReadRows tokenize = [&](const Positions& positions) {
      return prepare_rows_with_helper(options, model_directory, positions, control);
    };
    return take(options, tokenize, group);
  }
  if (rows->offsets() != nullptr && !options.concatenate) return deal_rows(*rows, options, group, control);
  const RowOrder order(*rows, options);
  const ReadRows read = [&](const Positions& positions) {
    return read_rows(*rows, order, positions, options, control);
  };
  return take(options, read, group);
}

}  // namespace

CalibrationSet load_partition(const DatasetOptions& options, const std::filesystem::path& model_directory,
                              std::int64_t vocabulary_size, LoaderGroup& group, const RunControl& control) {
  if (group.size() == 1) return load_samples(options, model_directory, vocabulary_size, control);
  check_options(options);
  Part part = load_part(options, model_directory, group, control);
  RunControl told_once = control;
  if (group.rank() != 0) told_once.events = nullptr;
  report_count(part.whole, options, told_once);
  check_vocabulary(part.set, &part.numbers, vocabulary_size, options);
  part.set.places = std::move(part.numbers);
  return std::move(part.set);
}

}  // namespace layerpress::data
