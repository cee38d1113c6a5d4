#include "layerpress/execution/batch_pieces.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "tests/execution/small_model.h"

namespace layerpress::execution {
namespace {

[[noreturn]] void run_out_of_memory() {
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, "made up");
}

/// Tokens of the pieces that pass when more than `most` do not fit.
std::vector<std::int64_t> passed(BatchPieces& pieces, const Batch& whole, std::int64_t most) {
  std::vector<std::int64_t> tokens;
  at::Tensor ids = at::empty({0}, at::kLong);
  const auto run_piece = [&](BatchPiece& piece) {
    EXPECT_EQ(piece.first_token, ids.size(0));
    if (piece.batch.tokens() > most) run_out_of_memory();
    tokens.push_back(piece.batch.tokens());
    EXPECT_EQ(piece.batch.token_ids.size(0), piece.batch.tokens());
    ids = at::cat({ids, piece.batch.token_ids});
    piece.kept[7] = piece.batch.token_ids;
  };
  std::vector<BatchPiece> done = pieces.run(whole, true, run_piece);
  EXPECT_TRUE(at::equal(ids, whole.token_ids));
  for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i].is_last, i + 1 == done.size());
  EXPECT_TRUE(at::equal(join_kept(done, 7), whole.token_ids));
  return tokens;
}

using Tokens = std::vector<std::int64_t>;

TEST(BatchPieces, AreHalvedUntilTheyFitAndStaySmall) {
  const Batch batch = test::random_batches({5, 9, 1, 17, 8, 3}, 6).front();
  BatchPieces pieces;
  EXPECT_EQ(passed(pieces, batch, 100), (Tokens{43}));
  EXPECT_EQ(passed(pieces, batch, 40), (Tokens{15, 17, 11}));  // 43 did not fit, and more than a half is not tried
  EXPECT_EQ(passed(pieces, batch, 100), (Tokens{15, 17, 11})) << "what did not fit once is not tried again";
  EXPECT_EQ(passed(pieces, batch, 17), (Tokens{15, 17, 11}));
  const Batch other = test::random_batches({30, 2, 2}, 3).front();
  EXPECT_EQ(passed(pieces, other, 30), (Tokens{30, 4}));
}

TEST(BatchPieces, SayWhatToDoWhenASampleDoesNotFit) {
  const Batch batch = test::random_batches({5, 9, 1, 17, 8, 3}, 6).front();
  BatchPieces pieces;
  try {
    passed(pieces, batch, 16);
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("17 tokens"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--sequential-targets"), std::string::npos);
  }
}

TEST(BatchPieces, AreNotCutWhereThatWouldChangeSomething) {
  const Batch batch = test::random_batches({5, 9}, 2).front();
  BatchPieces pieces;
  EXPECT_THROW(pieces.run(batch, /*divisible=*/false, [](BatchPiece&) { run_out_of_memory(); }), MemoryError);
  const auto collecting = [](BatchPiece& piece) {
    piece.is_collecting = true;
    run_out_of_memory();
  };
  EXPECT_THROW(pieces.run(batch, true, collecting), MemoryError);
  EXPECT_THROW(pieces.run(batch, true, [](BatchPiece&) { throw DataError("row 3"); }), DataError);
}

}  // namespace
}  // namespace layerpress::execution
