#include "layerpress/quant/compressed_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "layerpress/base/error.h"
#include "layerpress/kernels/scales/levels.h"
#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;
using Tensors = std::map<std::string, at::Tensor>;

QuantizationScheme scheme_of(const std::string& weights, const std::string& format = "") {
  QuantizationScheme scheme;
  scheme.targets = {"Linear"};
  scheme.weights = parse_quantization_args(Json::parse(weights), "test");
  scheme.format = format;
  return scheme;
}

/// Random codes, scales and zero points that fit the scheme.
QuantizedWeight random_weight(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                              at::ScalarType scale_dtype = at::kBFloat16) {
  const QuantizationArgs& args = *scheme.weights;
  QuantizedWeight weight;
  const Shape shape = scale_shape(args, rows, columns);
  weight.scale = at::rand(shape).add_(0.01).to(scale_dtype);
  if (has_global_scale(args)) {
    weight.scale = at::rand(shape).mul_(400).to(at::kFloat8_e4m3fn);
    weight.global_scale = at::full({1}, 123.4f, at::kFloat);
  } else if (has_power_scales(args)) {
    weight.scale = at::randint(120, 131, shape, at::kByte);
  }
  if (code_dtype(args) == at::kByte) {
    weight.codes = at::randint(0, 16, {rows, columns}, at::kByte);
  } else if (args.type == NumberType::kFloat) {
    weight.codes = at::randn({rows, columns}).mul_(50).to(at::kFloat8_e4m3fn);
  } else {
    weight.codes = at::randint(args.minimum_code(), args.maximum_code() + 1, {rows, columns}, at::kChar);
    if (!args.symmetric)
      weight.zero_point = at::randint(args.minimum_code(), args.maximum_code() + 1, shape, at::kChar);
  }
  return weight;
}

Tensors stored(const QuantizationScheme& scheme, const QuantizedWeight& weight) {
  Tensors tensors;
  for (const NamedTensor& part : compress(scheme, weight)) tensors.emplace(part.suffix, part.tensor);
  return tensors;
}

QuantizedWeight read(const QuantizationScheme& scheme, const Tensors& tensors) {
  return decompress(scheme, "model.layer", [&](const std::string& suffix) -> std::optional<at::Tensor> {
    const auto found = tensors.find(suffix);
    return found == tensors.end() ? std::nullopt : std::optional(found->second);
  });
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

/// Element by element, in double.
at::Tensor slow_dequantize(const QuantizationScheme& scheme, const QuantizedWeight& weight) {
  const at::Tensor codes =
      kernels::code_levels(weight.codes.view(at::kChar), element_of(*scheme.weights)).to(at::kDouble);
  const at::Tensor scales = wide_scales(weight.scale, weight.global_scale);
  const std::int64_t rows = codes.size(0);
  const std::int64_t columns = codes.size(1);
  const ScaleBlock block = scale_block(*scheme.weights, rows, columns);
  at::Tensor result = at::empty_like(codes);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t i = row / block.rows;
      const std::int64_t j = column / block.columns;
      const bool single = scales.dim() == 1;
      const double scale = single ? scales[0].item<double>() : scales[i][j].item<double>();
      double zero = 0;
      if (weight.zero_point.defined())
        zero = single ? weight.zero_point[0].item<double>() : weight.zero_point[i][j].item<double>();
      result[row][column] = (codes[row][column].item<double>() - zero) * scale;
    }
  return result;
}

/// NVFP4, MXFP4 and MXFP8.
std::vector<QuantizationScheme> grouped_floats() {
  std::vector<QuantizationScheme> schemes;
  for (const char* preset : {"NVFP4A16", "MXFP4A16", "MXFP8A16"}) {
    schemes.push_back(preset_scheme(preset));
    schemes.back().targets = {"Linear"};
  }
  return schemes;
}

std::vector<QuantizationScheme> all_schemes() {
  std::vector<QuantizationScheme> schemes;
  for (int bits = 2; bits <= 8; ++bits)
    for (const char* symmetric : {"true", "false"})
      for (const char* how : {R"("strategy":"tensor")", R"("strategy":"channel")", R"("group_size":8)"})
        for (const char* format : {"pack-quantized", "int-quantized"})
          schemes.push_back(
              scheme_of(fmt::format(R"({{"num_bits":{},"symmetric":{},{}}})", bits, symmetric, how), format));
  for (const char* how :
       {R"("strategy":"tensor")", R"("strategy":"channel")", R"("strategy":"block","block_structure":[16,8])"})
    schemes.push_back(scheme_of(fmt::format(R"({{"num_bits":8,"type":"float",{}}})", how), "float-quantized"));
  for (const QuantizationScheme& scheme : grouped_floats()) schemes.push_back(scheme);
  return schemes;
}

TEST(CompressedWeightTest, EverySchemeComesBackAsItWas) {
  at::manual_seed(3);
  for (const QuantizationScheme& scheme : all_schemes()) {
    const QuantizedWeight weight = random_weight(scheme, 21, 64);
    const QuantizedWeight back = read(scheme, stored(scheme, weight));
    const std::string name = to_json(*scheme.weights).dump() + scheme.format;
    EXPECT_TRUE(same_bytes(back.codes, weight.codes)) << name;
    EXPECT_TRUE(same_bytes(back.scale, weight.scale)) << name;
    ASSERT_EQ(back.global_scale.defined(), weight.global_scale.defined()) << name;
    if (weight.global_scale.defined()) {
      EXPECT_TRUE(same_bytes(back.global_scale, weight.global_scale)) << name;
    }
    ASSERT_EQ(back.zero_point.defined(), weight.zero_point.defined()) << name;
    if (!weight.zero_point.defined()) continue;
    EXPECT_TRUE(same_bytes(back.zero_point, weight.zero_point)) << name;
  }
}

TEST(CompressedWeightTest, LayoutSaysWhatIsWritten) {
  at::manual_seed(4);
  for (const QuantizationScheme& scheme : all_schemes()) {
    const auto tensors = compress(scheme, random_weight(scheme, 21, 64));
    const auto layout = compressed_layout(scheme, 21, 64, at::kBFloat16);
    ASSERT_EQ(tensors.size(), layout.size());
    for (std::size_t i = 0; i < layout.size(); ++i) {
      EXPECT_EQ(tensors[i].suffix, layout[i].suffix);
      EXPECT_EQ(tensors[i].tensor.scalar_type(), layout[i].dtype) << layout[i].suffix;
      EXPECT_EQ(tensors[i].tensor.sizes(), c10::IntArrayRef(layout[i].shape)) << layout[i].suffix;
      EXPECT_TRUE(tensors[i].tensor.is_contiguous());
    }
  }
}

TEST(CompressedWeightTest, DequantizesExactly) {
  at::manual_seed(5);
  for (const QuantizationScheme& scheme : all_schemes()) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const QuantizedWeight weight = random_weight(scheme, 21, 64, dtype);
      // Products of a code and a scale of `dtype` are exact in fp32, so double and then `dtype` is the only right answer; a scale
      // that is divided by a global one has all bits of fp32, and products are fp32's.
      const at::Tensor exact = slow_dequantize(scheme, weight);
      const at::Tensor expected = weight.global_scale.defined() ? exact.to(at::kFloat).to(dtype) : exact.to(dtype);
      EXPECT_TRUE(same_bytes(dequantize(scheme, weight, dtype), expected)) << to_json(*scheme.weights).dump() << dtype;
    }
  }
}

TEST(CompressedWeightTest, DequantizesOnManyThreadsInInferenceMode) {
  at::manual_seed(7);
  for (const char* weights : {R"({"num_bits":4,"group_size":128,"symmetric":false})",
                              R"({"num_bits":8,"type":"float","strategy":"block","block_structure":[256,128]})"}) {
    const QuantizationScheme scheme = scheme_of(weights);
    const QuantizedWeight weight = random_weight(scheme, 3001, 512);
    const ScaleBlock block = scale_block(*scheme.weights, 3001, 512);
    const auto expand = [&](const at::Tensor& t) {
      const at::Tensor rows = t.to(at::kFloat).repeat_interleave(block.rows, 0).narrow(0, 0, 3001);
      return rows.repeat_interleave(block.columns, 1);
    };
    at::Tensor expected = weight.codes.to(at::kFloat);
    if (weight.zero_point.defined()) expected = expected - expand(weight.zero_point);
    expected = (expected * expand(weight.scale)).to(at::kBFloat16);
    const c10::InferenceMode inference;
    EXPECT_TRUE(at::equal(dequantize(scheme, weight, at::kBFloat16), expected)) << weights;
  }
}

TEST(CompressedWeightTest, RelativeErrorIsThatOfTheDequantizedWeight) {
  at::manual_seed(8);
  for (const QuantizationScheme& scheme : all_schemes())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
      const QuantizedWeight weight = random_weight(scheme, 21, 64);
      const at::Tensor values = dequantize(scheme, weight, dtype).to(at::kDouble);
      const at::Tensor original = (values + 0.1 * at::randn({21, 64}, at::kDouble)).to(dtype).to(at::kDouble);
      const double expected = ((original - values).norm() / original.norm()).item<double>();
      EXPECT_NEAR(relative_error(scheme, original.to(dtype), weight), expected, 1e-5 * expected)
          << to_json(*scheme.weights).dump() << dtype;
    }
}

TEST(CompressedWeightTest, BytesAreThoseOfTheTensors) {
  for (const QuantizationScheme& scheme : all_schemes()) {
    const QuantizedWeight weight = random_weight(scheme, 21, 64);
    std::size_t bytes = weight.codes.nbytes() + weight.scale.nbytes();
    if (weight.zero_point.defined()) bytes += weight.zero_point.nbytes();
    if (weight.global_scale.defined()) bytes += weight.global_scale.nbytes();
    EXPECT_EQ(quantized_bytes(*scheme.weights, 21, 64, at::kBFloat16), bytes) << to_json(*scheme.weights).dump();
  }
}

TEST(CompressedWeightTest, BlocksNeedNotDivideTheWeight) {
  at::manual_seed(6);
  const QuantizationScheme scheme =
      scheme_of(R"({"num_bits":8,"type":"float","strategy":"block","block_structure":[16,16]})");
  EXPECT_EQ(scale_shape(*scheme.weights, 40, 50), (Shape{3, 4}));
  const QuantizedWeight weight = random_weight(scheme, 40, 50);
  EXPECT_TRUE(same_bytes(dequantize(scheme, weight, at::kBFloat16), slow_dequantize(scheme, weight).to(at::kBFloat16)));
}

TEST(CompressedWeightTest, KnownFp4Bytes) {
  QuantizationScheme scheme = preset_scheme("NVFP4A16");
  QuantizedWeight weight;
  weight.codes = at::arange(0, 16, at::kInt).to(at::kByte).view({1, 16});
  weight.scale = at::full({1, 1}, 1.5).to(at::kFloat8_e4m3fn);
  weight.global_scale = at::full({1}, 3.0f);
  const Tensors tensors = stored(scheme, weight);
  const at::Tensor expected = at::tensor({0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE}, at::kInt).to(at::kByte);
  EXPECT_TRUE(at::equal(tensors.at("weight_packed"), expected.view({1, 8})));
  EXPECT_EQ(tensors.at("weight_scale").view(at::kByte).item<int>(), 0x3C);
  EXPECT_TRUE(at::equal(dequantize(scheme, weight, at::kFloat).slice(1, 0, 8),
                        at::tensor({0.f, .25f, .5f, .75f, 1.f, 1.5f, 2.f, 3.f}).view({1, 8})));
  scheme = preset_scheme("MXFP4A16");
  weight = {at::full({1, 32}, 7, at::kByte), at::full({1, 1}, 125, at::kByte), {}, {}};
  EXPECT_TRUE(dequantize(scheme, weight, at::kBFloat16).eq(1.5).all().item<bool>());
}

/// What travels between ranks.
TEST(RowTransferTest, EverySchemeArrivesAsItWas) {
  at::manual_seed(9);
  for (const QuantizationScheme& scheme : all_schemes()) {
    const QuantizationArgs& args = *scheme.weights;
    const QuantizedWeight weight = random_weight(scheme, 24, 64);
    std::vector<std::uint64_t> buffer(transfer_bytes(scheme, 24, 64, at::kBFloat16) / 8 + 1);
    write_transfer(scheme, weight, reinterpret_cast<std::uint8_t*>(buffer.data()));
    const QuantizedWeight back =
        read_transfer(scheme, 24, 64, at::kBFloat16, reinterpret_cast<std::uint8_t*>(buffer.data()));
    EXPECT_TRUE(same_bytes(back.codes, weight.codes)) << to_json(args).dump();
    EXPECT_TRUE(same_bytes(back.scale, weight.scale)) << to_json(args).dump();
    if (weight.global_scale.defined()) {
      EXPECT_TRUE(same_bytes(back.global_scale, weight.global_scale));
    }
    if (rows_per_scale(args) != 1) continue;
    const QuantizedWeight joined = join_rows({back, back});
    EXPECT_TRUE(same_bytes(joined.scale.narrow(0, 24, 24), weight.scale)) << to_json(args).dump();
    EXPECT_EQ(joined.global_scale.defined(), weight.global_scale.defined());
  }
}

TEST(DenseWeightTest, IsItsValues) {
  at::manual_seed(3);
  const QuantizationScheme& scheme = dense_scheme();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    QuantizedWeight weight;
    weight.codes = at::randn({6, 10}).to(dtype);
    const std::vector<NamedTensorSpec> layout = compressed_layout(scheme, 6, 10, dtype);
    ASSERT_EQ(layout.size(), 1u);
    EXPECT_EQ(layout[0].suffix, "weight");
    const Tensors tensors = stored(scheme, weight);
    EXPECT_TRUE(at::equal(tensors.at("weight"), weight.codes));
    const QuantizedWeight back = decompress(scheme, "a.q_proj", [&](const std::string& suffix) {
      return suffix == "weight" ? std::optional(tensors.at("weight")) : std::nullopt;
    });
    EXPECT_TRUE(at::equal(dequantize(scheme, back, dtype), weight.codes));
    EXPECT_EQ(relative_error(scheme, weight.codes, back), 0);
    std::vector<std::uint64_t> buffer(transfer_bytes(scheme, 6, 10, dtype) / 8 + 1);
    write_transfer(scheme, weight, reinterpret_cast<std::uint8_t*>(buffer.data()));
    const QuantizedWeight arrived = read_transfer(scheme, 6, 10, dtype, reinterpret_cast<std::uint8_t*>(buffer.data()));
    EXPECT_TRUE(at::equal(join_rows({arrived, arrived}).codes, at::cat({weight.codes, weight.codes})));
    EXPECT_EQ(quantized_bytes(scheme, 6, 10, dtype), weight.codes.nbytes());
  }
  EXPECT_THROW(compress(scheme, {.codes = at::full({1, 2}, NAN), .scale = {}, .zero_point = {}}), RecipeError);
  EXPECT_THROW(decompress(scheme, "m", [](const std::string&) { return std::nullopt; }), CheckpointError);
  EXPECT_THROW(decompress(scheme, "m", [](const std::string&) { return std::optional(at::ones({4})); }),
               CheckpointError);
}

TEST(UnchangedWeightTest, TakesNothing) {
  const QuantizationScheme& scheme = unchanged_scheme();
  EXPECT_TRUE(is_dense(scheme) && is_unchanged(scheme) && !is_unchanged(dense_scheme()));
  EXPECT_EQ(quantized_bytes(scheme, 6, 10, at::kBFloat16), 0u);
  EXPECT_EQ(transfer_bytes(scheme, 6, 10, at::kBFloat16), 0u);
  EXPECT_TRUE(compressed_layout(scheme, 6, 10, at::kBFloat16).empty());
  write_transfer(scheme, {}, nullptr);
  const QuantizedWeight arrived = read_transfer(scheme, 6, 10, at::kBFloat16, nullptr);
  EXPECT_FALSE(arrived.codes.defined());
  EXPECT_FALSE(join_rows({arrived, arrived}).codes.defined());
}

TEST(CompressedWeightTest, KnownWords) {
  const QuantizationScheme scheme = scheme_of(R"({"num_bits":4,"group_size":8})");
  QuantizedWeight weight;
  weight.codes = at::tensor({-8, -5, -2, 0, 2, 5, 6, 7}, at::kInt).to(at::kChar).reshape({1, 8});
  weight.scale = at::full({1, 1}, 0.1);
  const Tensors tensors = stored(scheme, weight);
  EXPECT_EQ(static_cast<std::uint32_t>(tensors.at("weight_packed").item<int>()), 0xFEDA8630u);
  EXPECT_TRUE(at::equal(tensors.at("weight_shape"), at::tensor({1, 8}, at::kLong)));
  EXPECT_EQ(tensors.count("weight_zero_point"), 0u);
}

TEST(CompressedWeightTest, ZeroPointsArePackedAlongTheRows) {
  const QuantizationScheme scheme = scheme_of(R"({"num_bits":4,"group_size":8,"symmetric":false})");
  QuantizedWeight weight;
  weight.codes = at::zeros({16, 8}, at::kChar);
  weight.scale = at::ones({16, 1});
  weight.zero_point = at::arange(-8, 8, at::kInt).to(at::kChar).reshape({16, 1});
  const at::Tensor packed = stored(scheme, weight).at("weight_zero_point");
  ASSERT_EQ(packed.sizes(), (Shape{2, 1}));
  EXPECT_EQ(static_cast<std::uint32_t>(packed[0].item<int>()), 0x76543210u);
  EXPECT_EQ(static_cast<std::uint32_t>(packed[1].item<int>()), 0xFEDCBA98u);

  weight = {at::zeros({3, 8}, at::kChar),
            at::ones({3, 1}),
            at::tensor({0, -8, 7}, at::kInt).to(at::kChar).reshape({3, 1}),
            {}};
  EXPECT_EQ(stored(scheme, weight).at("weight_zero_point").item<int>(), 0x00000F08);
}

TEST(CompressedWeightTest, RefusesBadScalesAndOurOwnMistakes) {
  const QuantizationScheme scheme = scheme_of(R"({"num_bits":4,"group_size":8})");
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    QuantizedWeight weight = random_weight(scheme, 4, 16);
    weight.scale[2][1] = bad;
    EXPECT_THROW(compress(scheme, weight), RecipeError);
  }
  QuantizedWeight weight = random_weight(scheme, 4, 16);
  weight.codes[0][0] = 8;
  EXPECT_THROW(compress(scheme, weight), InternalError);
  weight = random_weight(scheme, 4, 16);
  weight.scale = weight.scale.flatten();
  EXPECT_THROW(compress(scheme, weight), InternalError);
  weight = random_weight(scheme, 4, 16);
  weight.zero_point = at::zeros({4, 2}, at::kChar);
  EXPECT_THROW(compress(scheme, weight), InternalError);
}

void expect_refused(const QuantizationScheme& scheme, const std::function<void(Tensors&)>& damage,
                    const std::string& suffix) {
  Tensors tensors = stored(scheme, random_weight(scheme, 16, 32));
  damage(tensors);
  try {
    read(scheme, tensors);
    ADD_FAILURE() << "accepted, damaged in " << suffix;
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("model.layer." + suffix), std::string::npos) << error.what();
  }
}

TEST(CompressedWeightTest, RefusesDamagedTensors) {
  const QuantizationScheme packed = scheme_of(R"({"num_bits":4,"group_size":8,"symmetric":false})");
  for (const char* suffix : {"weight_packed", "weight_scale", "weight_shape", "weight_zero_point"})
    expect_refused(
        packed, [&](Tensors& t) { t.erase(suffix); }, suffix);
  const std::int64_t huge = std::int64_t{1} << 62;
  expect_refused(
      packed,
      [](Tensors& t) {
        t["weight_shape"] = at::tensor({16, 33}, at::kLong);
      },
      "weight_packed");
  expect_refused(
      packed, [&](Tensors& t) { t["weight_shape"] = at::full({2}, huge, at::kLong); }, "weight_packed");
  expect_refused(
      packed,
      [](Tensors& t) {
        t["weight_shape"] = at::tensor({-16, 32}, at::kLong);
      },
      "weight_shape");
  expect_refused(
      packed,
      [](Tensors& t) {
        t["weight_shape"] = at::tensor({16.0, 32.0}, at::kDouble);
      },
      "weight_shape");
  expect_refused(
      packed, [](Tensors& t) { t["weight_shape"] = at::tensor({16}, at::kLong); }, "weight_shape");
  expect_refused(
      packed, [](Tensors& t) { t["weight_packed"] = t["weight_packed"].to(at::kLong); }, "weight_packed");
  expect_refused(
      packed, [](Tensors& t) { t["weight_scale"] = t["weight_scale"].t(); }, "weight_scale");
  expect_refused(
      packed, [](Tensors& t) { t["weight_scale"][0][0] = HUGE_VAL; }, "weight_scale");
  expect_refused(
      packed, [](Tensors& t) { t["weight_scale"] = t["weight_scale"].to(at::kInt); }, "weight_scale");
  expect_refused(
      packed,
      [](Tensors& t) {
        t["weight_zero_point"] = at::zeros({16, 4}, at::kInt);
      },
      "weight_zero_point");

  const QuantizationScheme plain = scheme_of(R"({"num_bits":4,"strategy":"channel"})", "int-quantized");
  expect_refused(
      plain, [](Tensors& t) { t["weight"][3][3] = 8; }, "weight");
  expect_refused(
      plain, [](Tensors& t) { t["weight"] = t["weight"].flatten(); }, "weight");
  expect_refused(
      plain, [](Tensors& t) { t["weight"] = t["weight"].to(at::kByte); }, "weight");
  expect_refused(
      plain,
      [](Tensors& t) {
        t["weight_zero_point"] = at::zeros({16, 1}, at::kChar);
      },
      "weight_zero_point");

  const QuantizationScheme fp8 = scheme_of(R"({"num_bits":8,"type":"float","strategy":"channel"})");
  expect_refused(
      fp8, [](Tensors& t) { t["weight"].view(at::kByte)[1][1] = 0xff; }, "weight");

  const QuantizationScheme nvfp4 = preset_scheme("NVFP4A16"), mxfp4 = preset_scheme("MXFP4A16");
  for (const QuantizationScheme& scheme : {nvfp4, mxfp4})
    for (const char* suffix : {"weight_packed", "weight_scale"})
      expect_refused(
          scheme, [&](Tensors& t) { t.erase(suffix); }, suffix);
  expect_refused(
      nvfp4, [](Tensors& t) { t.erase("weight_global_scale"); }, "weight_global_scale");
  for (const float bad : {0.0f, -3.0f, std::nanf(""), HUGE_VALF})
    expect_refused(
        nvfp4, [&](Tensors& t) { t["weight_global_scale"] = at::full({1}, bad); }, "weight_global_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_global_scale"] = at::ones({2}); }, "weight_global_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_scale"].view(at::kByte)[1][1] = 0x7f; }, "weight_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_scale"].view(at::kByte)[1][1] = 0x90; }, "weight_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_scale"] = t["weight_scale"].to(at::kBFloat16); }, "weight_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_scale"] = t["weight_scale"].narrow(1, 0, 1); }, "weight_scale");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_packed"] = t["weight_packed"].narrow(1, 0, 15); }, "weight_packed");
  expect_refused(
      nvfp4, [](Tensors& t) { t["weight_packed"] = t["weight_packed"].to(at::kInt); }, "weight_packed");
  expect_refused(
      mxfp4, [](Tensors& t) { t["weight_scale"][1][0] = 255; }, "weight_scale");
  expect_refused(
      mxfp4,
      [](Tensors& t) {
        t["weight_zero_point"] = at::zeros({16, 1}, at::kChar);
      },
      "weight_zero_point");

  const QuantizationScheme uneven = scheme_of(R"({"num_bits":4,"group_size":8})");
  expect_refused(
      uneven,
      [](Tensors& t) {
        t["weight_shape"] = at::tensor({16, 31}, at::kLong);
      },
      "weight_packed");
}

TEST(CompressedWeightTest, ReadsWhatOtherWritersStore) {
  const QuantizationScheme scheme = scheme_of(R"({"num_bits":8,"type":"float","strategy":"tensor"})");
  Tensors tensors = stored(scheme, random_weight(scheme, 16, 32));
  tensors["weight_scale"] = tensors["weight_scale"].reshape({});
  EXPECT_EQ(read(scheme, tensors).scale.sizes(), Shape{1});

  const QuantizationScheme packed = scheme_of(R"({"num_bits":4,"group_size":8})");
  tensors = stored(packed, random_weight(packed, 16, 32));
  tensors["weight_shape"] = tensors["weight_shape"].to(at::kInt);
  EXPECT_EQ(read(packed, tensors).codes.sizes(), (Shape{16, 32}));
}

}  // namespace
}  // namespace layerpress::quant
