#include "engine/checkpoint/checkpoint_index.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../../fuzz/entry_points.h"
#include "support/shards.h"

namespace muster::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<StateShard> tensors() {
  std::vector<StateShard> tensors;
  for (const test::WholeTensor& tensor : test::whole_state(0)) tensors.push_back(tensor.shard);
  return tensors;
}

TEST(CheckpointIndex, ReadsWhatItWrote) {
  CheckpointIndex index = lay_out({7, {{"a", "b\n\"c\""}, {"", ""}}}, tensors(), 500, 0xfedcba9876543210);
  index.files[0].tensors[0].checksum = 0xffffffffffffffff;
  const std::string text = index_text(index);
  const CheckpointIndex read = parse_index(text, "index");
  EXPECT_EQ(read.meta, index.meta);
  EXPECT_EQ(read.files[0].tensors[0].checksum, 0xffffffffffffffff);
  EXPECT_EQ(index_text(read), text);
}

TEST(CheckpointIndex, FillsFilesUpToTheirLimitAndPutsWideElementsFirst) {
  const CheckpointIndex index = lay_out({7, {}}, tensors(), 1000, 1);
  std::vector<std::vector<std::string>> names;
  for (const FileEntry& file : index.files) {
    names.emplace_back();
    for (const TensorEntry& t : file.tensors) names.back().push_back(t.info.name);
  }
  // 306 + 612 + 8 bytes; then 210 + 84 + 44 + 0 + 96.
  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{
                       {"blocks.0.q:updates", "blocks.0.q:weight", "blocks.0.q:momentum"},
                       {"counts", "experts:variance", "norm \"x\" é:first", "empty:second", "experts:mantissa"}}));
  EXPECT_EQ(index.files[1].name, "muster.7.0000000000000001.00001.safetensors");
  // A file for each, however small the limit.
  EXPECT_EQ(lay_out({}, tensors(), 0, 1).files.size(), 7);  // one holds nothing beside the tensor before
}

TEST(CheckpointIndex, RefusesWhatIsNotAnIndex) {
  const std::string head = R"("format": "muster checkpoint", "version": 1, "step": 0, "values": {}, )";
  const auto file = [&](const std::string& name, const std::string& bytes, const std::string& tensors) {
    return head + R"("files": [{"name": ")" + name + R"(", "bytes": )" + bytes + R"(, "tensors": [)" + tensors + "]}]}";
  };
  const std::string good = "muster.0.0000000000000001.00000.safetensors";
  const auto tensor = [](const std::string& dtype, const std::string& shape) {
    return R"({"name": "a", "dtype": ")" + dtype + R"(", "shape": [)" + shape + R"(], "checksum": "0000000000000000"})";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not valid JSON"},
      {"}", "'format' is missing"},
      {R"("format": "other"})", "not a Muster checkpoint"},
      {R"("format": "muster checkpoint", "version": 2})", "format version 2; this build reads 1"},
      {head + R"("files": []})", ""},
      {head + R"("files": [], "more": 1})", "unknown key 'more'"},
      {head + R"("files": {}})", "'files' must be an array"},
      {file("../../etc/passwd", "16", ""), "is not the name of a checkpoint's file"},
      {file("muster.0.0000000000000001.a/b.safetensors", "16", ""), "is not the name of a checkpoint's file"},
      {file(good, "16", ""), ""},
      {file(good, "17", ""), "'bytes' is 17, its tensors need 16"},
      {file(good, "-1", ""), "'bytes' must be an integer"},
      {file(good, "1e30", ""), "'bytes' must be an integer"},
      {file(good, "80", tensor("F32", "1")), "'bytes' is 80, its tensors need 68"},
      {file(good, "68", tensor("F32", "1")), ""},
      {file(good, "68", tensor("F64", "1")), "unknown dtype 'F64'"},
      {file(good, "68", tensor("F32", "-1")), "'shape' must be an integer"},
      {file(good, "68", tensor("F32", "4611686018427387904, 4")), "more than 2^63 - 1 bytes"},
      {file(good, "68", tensor("F32", "1, 1, 1, 1, 1, 1, 1, 1, 1")), "has 9 dims"},
      {file(good, "68", tensor("F32", "1") + "," + tensor("F32", "1")), "need"},
      {file(good, "9223372036854775807", tensor("I64", "1152921504606846975")), "more than 2^63 - 1 bytes"},
  };
  for (const auto& [rest, message] : cases) {
    std::string error;
    try {
      parse_index(seal_index(rest), "here");
    } catch (const InvalidArgument& refused) {
      error = refused.what();
    }
    if (message.empty()) {
      EXPECT_EQ(error, "") << rest;
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr(message), Not(HasSubstr("\n")))) << rest;
    }
  }
}

TEST(CheckpointIndex, KnowsItsFilesByTheirNames) {
  EXPECT_TRUE(is_checkpoint_file("muster.12.0123456789abcdef.00003.safetensors"));
  EXPECT_TRUE(is_checkpoint_file(temporary_index_name(5)));
  for (const std::string name :
       {"", ".", "muster.index.json", "muster.12.0123456789abcde.00003.safetensors",
        "muster.12.0123456789ABCDEF.00003.safetensors", "muster..0123456789abcdef.00003.safetensors",
        "model.12.0123456789abcdef.00003.safetensors", "muster.12.0123456789abcdef.00003.safetensors.bak"}) {
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
  }
}

TEST(CheckpointIndex, OfTheCorpusEndsInAnIndexOrAnInvalidArgument) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MUSTER_SOURCE_DIR "/tests/corpus/checkpoint")) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    EXPECT_NO_THROW(fuzz::feed_checkpoint(text)) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 5);
}

}  // namespace
}  // namespace muster::engine
