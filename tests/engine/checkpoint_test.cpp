#include "engine/checkpoint/checkpoint.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "model/safetensors.h"
#include "muster/error.h"
#include "support/run_ranks.h"
#include "support/shards.h"

namespace muster::engine {
namespace {

namespace fs = std::filesystem;
using test::Shard;
using test::whole_state;
using test::WholeState;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

class Checkpoints : public testing::Test {
 protected:
  Checkpoints() {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~Checkpoints() override { fs::remove_all(root_); }

  const std::string root_ = fs::temp_directory_path() / ("muster_checkpoint_" + std::to_string(::getpid()) + "_" +
                                                         testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string directory_ = root_ + "/run/checkpoint";

  void save(int64_t step, int32_t ranks = 1, int cut = 2, SaveOptions options = {}) {
    const WholeState state = whole_state(step);
    test::run_ranks(ranks, [&](Communicator& comm) {
      Shard shard(state, comm.rank(), ranks, cut);
      shard.take(state);
      save_checkpoint(directory_, {step, {{"rule", "muon \"a\"\n"}}}, shard.tensors, comm, options);
    });
  }

  void expect_holds(int64_t step, int32_t ranks = 1, int cut = 2) {
    const WholeState state = whole_state(step);
    test::run_ranks(ranks, [&](Communicator& comm) {
      Shard shard(state, comm.rank(), ranks, cut);
      const CheckpointMeta meta = load_checkpoint(directory_, shard.tensors, comm);
      EXPECT_EQ(meta, (CheckpointMeta{step, {{"rule", "muon \"a\"\n"}}}));
      EXPECT_TRUE(shard.holds(state)) << "rank " << comm.rank();
    });
  }

  // The error all ranks get for `wanted`, having changed nothing.
  std::string refusal(const WholeState& wanted, int32_t ranks = 1) {
    std::vector<std::string> errors(ranks, "loaded");
    const auto load = [&](Communicator& comm) {
      Shard shard(wanted, comm.rank(), ranks, 0);
      try {
        load_checkpoint(directory_, shard.tensors, comm);
      } catch (const InvalidArgument& error) {
        errors[comm.rank()] = error.what();
      }
      EXPECT_TRUE(shard.untouched()) << errors[comm.rank()];
    };
    // Without a thread, for those who ask ten thousand times.
    if (ranks == 1)
      load(*make_local_communicators(1)[0]);
    else
      test::run_ranks(ranks, load);
    EXPECT_THAT(errors, Each(errors[0]));
    EXPECT_THAT(errors[0], Not(HasSubstr("\n")));
    return errors[0];
  }
  std::string refusal(int32_t ranks = 1) { return refusal(whole_state(0), ranks); }

  // Names in the directory, the index first.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
      return std::pair(a != kIndexName, a) < std::pair(b != kIndexName, b);
    });
    return names;
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  static std::string read(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
};

TEST_F(Checkpoints, OfEightRanksLoadOnThreeOfAnotherCut) {
  for (int cut = 0; cut < test::kCuts; ++cut) {
    save(cut, 8, cut, {.file_bytes = 200});
    expect_holds(cut, 3, cut + 1);
    expect_holds(cut, 1, cut + 2);
  }
}

TEST_F(Checkpoints, DoNotDependOnWhoWroteThem) {
  const auto contents = [&] {
    std::vector<std::string> texts;
    for (const std::string& name : files()) {
      // All but the index, which has the names.
      if (name != kIndexName) texts.push_back(read(path(name)));
    }
    const CheckpointIndex index = parse_index(read(path(std::string(kIndexName))), "index");
    for (const FileEntry& file : index.files) {
      for (const TensorEntry& t : file.tensors) texts.push_back(t.info.name + std::to_string(t.checksum));
    }
    return texts;
  };
  save(3);
  const std::vector<std::string> alone = contents();
  for (const int32_t ranks : {1, 2, 3, 5, 8}) {
    for (int cut = 0; cut < test::kCuts; ++cut) {
      save(3, ranks, cut);
      EXPECT_EQ(contents(), alone) << ranks << " ranks, cut " << cut;
    }
  }
}

TEST_F(Checkpoints, AreSafetensorsFilesOfWholeTensors) {
  save(5, 3, 1, {.file_bytes = 700});
  const WholeState state = whole_state(5);
  size_t seen = 0;
  ASSERT_GT(files().size(), 3);
  for (const std::string& name : files()) {
    if (name == kIndexName) continue;
    const std::string text = read(path(name));
    const auto bytes = static_cast<int64_t>(text.size());
    // The reader of other people's files, which shares nothing with the writer.
    const auto tensors = model::parse_safetensors(text, bytes, name);
    const int64_t header = model::safetensors_header_bytes(text, bytes, name);
    EXPECT_EQ(header % 8, 0);
    const auto json = nlohmann::json::parse(text.substr(8, static_cast<size_t>(header)));
    for (const model::Tensor& tensor : tensors) {
      const auto whole =
          std::find_if(state.begin(), state.end(), [&](const auto& t) { return t.shard.info.name == tensor.name; });
      ASSERT_NE(whole, state.end()) << tensor.name;
      EXPECT_EQ(tensor.shape, whole->shard.info.shape);
      EXPECT_EQ(tensor.dtype, dtype_name(whole->shard.info.type));
      const size_t begin = json[tensor.name]["data_offsets"][0];
      EXPECT_EQ(begin % static_cast<size_t>(byte_size(whole->shard.info.type)), 0) << "not aligned";
      EXPECT_EQ(text.substr(8 + static_cast<size_t>(header) + begin, whole->data.size()),
                std::string(reinterpret_cast<const char*>(whole->data.data()), whole->data.size()));
      ++seen;
    }
  }
  EXPECT_EQ(seen, state.size());
}

// Pieces larger than the buffer, in one stretch, in long rows and in narrow ones.
TEST_F(Checkpoints, HoldTensorsLargerThanTheBuffer) {
  constexpr int64_t kRows = 600;
  constexpr int64_t kColumns = 1100;
  WholeState state(test::kCuts);
  for (size_t t = 0; t < state.size(); ++t) {
    state[t].data.resize(kRows * kColumns * 4);
    for (size_t i = 0; i < state[t].data.size(); ++i) {
      state[t].data[i] = static_cast<std::byte>((i * 2654435761 + t) >> 13);
    }
    state[t].shard.info = {"t" + std::to_string(t), StateType::kF32, {kRows, kColumns}};
  }
  test::run_ranks(2, [&](Communicator& comm) {
    Shard shard(state, comm.rank(), comm.size(), 0);
    shard.take(state);
    save_checkpoint(directory_, {}, shard.tensors, comm);
    Shard loaded(state, comm.rank(), comm.size(), 2);
    load_checkpoint(directory_, loaded.tensors, comm);
    EXPECT_TRUE(loaded.holds(state));
  });
}

TEST_F(Checkpoints, OfNothingLoad) {
  test::run_ranks(2, [&](Communicator& comm) {
    save_checkpoint(directory_, {9, {}}, {}, comm);
    EXPECT_EQ(load_checkpoint(directory_, {}, comm).step, 9);
  });
}

TEST_F(Checkpoints, ReplaceTheOneBefore) {
  save(1, 2);
  const auto before = files();
  save(2, 3);
  expect_holds(2);
  EXPECT_EQ(files().size(), 2);
  EXPECT_NE(files(), before);
}

TEST_F(Checkpoints, RemoveWhatKilledSavesLeftAndNothingElse) {
  save(1);
  const std::vector<std::string> left = {"muster.7.0123456789abcdef.00000.safetensors",
                                         "muster.index.0123456789abcdef.tmp"};
  const std::vector<std::string> foreign = {"model.safetensors", "muster.7.xyz.00000.safetensors", "notes.txt",
                                            "muster.index.json.bak"};
  for (const std::string& name : left) write(path(name), "x");
  for (const std::string& name : foreign) write(path(name), "x");
  save(2);
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(path(name))) << name;
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(path(name))) << name;
  expect_holds(2);
}

TEST_F(Checkpoints, AreRefusedForABitFlippedAnywhere) {
  save(0, 1, 2, {.file_bytes = 900});
  ASSERT_GT(files().size(), 2);
  for (const std::string& name : files()) {
    const std::string good = read(path(name));
    std::fstream file(path(name), std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](size_t byte, char value) { file.seekp(static_cast<std::streamoff>(byte)).put(value).flush(); };
    // One bit a byte, each in its turn.
    for (size_t byte = 0; byte < good.size(); ++byte) {
      put(byte, static_cast<char>(good[byte] ^ 1 << byte % 8));
      ASSERT_THAT(refusal(), HasSubstr(path(name))) << "byte " << byte << " of " << name;
      put(byte, good[byte]);
    }
  }
  expect_holds(0);
}

TEST_F(Checkpoints, NameTheDamagedTensor) {
  save(0, 2);
  const std::string file = path(files()[1]);
  std::string text = read(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  write(file, text);
  EXPECT_THAT(refusal(3), AllOf(HasSubstr(file), HasSubstr("tensor 'experts:mantissa' is damaged")));
}

// They were loaded: means of squares below 0 became NaN weights, and a counter of 2^63 - 1 wrapped around.
TEST_F(Checkpoints, OfValuesThatStateCannotHaveAreRefused) {
  int64_t updates = -3;
  std::array<float, 2> variance{0.25F, -0.5F};
  std::array<std::byte, 16> kept{};
  const auto shards = [](void* counter, void* means) {
    const auto dense = [](int64_t count, void* data) {
      return StateBlock{.rows = 1, .columns = count, .data = static_cast<std::byte*>(data)};
    };
    return std::vector<StateShard>{{{"w:updates", StateType::kI64, {}}, {dense(1, counter)}},
                                   {{"w:variance", StateType::kF32, {2}}, {dense(2, means)}}};
  };
  const auto comm = std::move(make_local_communicators(1)[0]);
  const auto said = [&] {
    save_checkpoint(directory_, {}, shards(&updates, variance.data()), *comm);
    try {
      load_checkpoint(directory_, shards(kept.data(), kept.data() + 8), *comm);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  EXPECT_THAT(said(), HasSubstr("state 'w:updates': -3; expected 0 to 2^53"));
  updates = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(said(), HasSubstr("state 'w:updates': 9223372036854775807"));
  updates = 7;
  EXPECT_THAT(said(), HasSubstr("state 'w:variance': -0.5; expected no negative mean of squares"));
  EXPECT_THAT(kept, Each(std::byte{0})) << "nothing is changed by a refusal";
  variance[1] = 0;
  EXPECT_EQ(said(), "loaded");
}

TEST_F(Checkpoints, OfAnotherLengthAreRefused) {
  save(0, 2, 1, {.file_bytes = 900});
  for (const std::string& name : files()) {
    const std::string good = read(path(name));
    for (const size_t bytes : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1, good.size() + 1}) {
      std::string bad = good;
      bad.resize(bytes);
      write(path(name), bad);
      const std::string error = refusal(3);
      EXPECT_THAT(error, HasSubstr(path(name)));
      if (name == kIndexName) continue;
      EXPECT_THAT(error,
                  HasSubstr("has " + std::to_string(bytes) + " bytes, the index says " + std::to_string(good.size())));
    }
    write(path(name), good);
  }
}

TEST_F(Checkpoints, WithAMissingFileAreRefusedByItsName) {
  save(0, 2, 1, {.file_bytes = 900});
  for (const std::string& name : files()) {
    fs::rename(path(name), root_ + "/aside");
    EXPECT_THAT(refusal(3), AllOf(HasSubstr(path(name)), HasSubstr("No such file")));
    fs::create_directory(path(name));
    EXPECT_THAT(refusal(3), AllOf(HasSubstr(path(name)), HasSubstr("not a regular file")));
    fs::remove(path(name));
    fs::rename(root_ + "/aside", path(name));
  }
  expect_holds(0);
}

// A whole file of another save under this one's name.
TEST_F(Checkpoints, MixedFromTwoSavesAreRefused) {
  save(1);
  const std::string old = read(path(files()[1]));
  save(0);
  write(path(files()[1]), old);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path(files()[1])), HasSubstr("is damaged")));
}

TEST_F(Checkpoints, OfOtherTensorsAreRefused) {
  save(0, 2);
  WholeState wanted = whole_state(0);
  wanted[1].shard.info.shape = {9, 17};
  EXPECT_THAT(refusal(wanted, 3), HasSubstr("tensor 'blocks.0.q:weight' is F32 [17, 9], but F32 [9, 17] here"));
  wanted = whole_state(0);
  wanted[0].shard.info.type = StateType::kU16;
  EXPECT_THAT(refusal(wanted, 3), HasSubstr("tensor 'blocks.0.q:momentum' is BF16 [17, 9], but U16 [17, 9] here"));
  wanted = whole_state(0);
  wanted.erase(wanted.begin() + 3);
  EXPECT_THAT(refusal(wanted, 3), HasSubstr("holds tensor 'experts:mantissa', which nothing here asks for"));
  wanted = whole_state(0);
  wanted.push_back({{{"new", StateType::kF32, {2}}, {}}, {}});
  EXPECT_THAT(refusal(wanted, 3), HasSubstr("has no tensor 'new'"));
}

// What every rank got from a save that must fail, as an E.
template <typename E = InvalidArgument, typename Change>
std::vector<std::string> failed_save(const std::string& directory, int32_t ranks, Change change) {
  const WholeState state = whole_state(77);
  std::vector<std::string> errors(ranks, "saved");
  test::run_ranks(ranks, [&](Communicator& comm) {
    Shard shard(state, comm.rank(), ranks, 1);
    shard.take(state);
    change(comm.rank(), shard.tensors);
    try {
      save_checkpoint(directory, {77, {}}, shard.tensors, comm, {.file_bytes = 100});
    } catch (const E& error) {
      errors[comm.rank()] = error.what();
    }
  });
  return errors;
}
void nothing(int32_t, std::vector<StateShard>&) {}

TEST_F(Checkpoints, IntoNoDirectoryFailOnAllRanks) {
  write(root_ + "/run", "a file");
  EXPECT_THAT(failed_save(directory_, 3, nothing), Each(AllOf(HasSubstr(directory_), HasSubstr("Not a directory"))));
  EXPECT_THAT(failed_save("/proc/muster", 3, nothing), Each(HasSubstr("cannot create '/proc/muster'")));
}

TEST_F(Checkpoints, ThatFailOnOneRankFailOnAll) {
  save(1);
  const auto before = files();
  const auto errors = failed_save(directory_, 5, [](int32_t rank, std::vector<StateShard>& tensors) {
    if (rank == 3) tensors[1].blocks[0].index = 153;
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 3"), HasSubstr("tensor 'blocks.0.q:weight'"))));
  EXPECT_THAT(failed_save(directory_, 5,
                          [](int32_t rank, std::vector<StateShard>& tensors) {
                            if (rank == 3) tensors[1].info.name = "other";
                          }),
              Each(HasSubstr("ranks disagree")));
  EXPECT_EQ(files(), before);
  expect_holds(1);
}

// A system that refuses to let one of the files grow. It was an InvalidArgument, as if another call would do better.
TEST_F(Checkpoints, ThatDoNotFitLeaveTheOldOneAndNothingElse) {
  save(1);
  const auto before = files();
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = old;
  low.rlim_cur = 600;
  ::setrlimit(RLIMIT_FSIZE, &low);
  const auto errors = failed_save<ResourceError>(directory_, 5, nothing);
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(errors, Each(errors[0]));
  // The one tensor of more than that is in the second file, rank 1's.
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 1: cannot write"), HasSubstr(directory_), HasSubstr("File too large"))));
  EXPECT_EQ(files(), before);
  expect_holds(1);
}

// The files are in place, the index cannot be.
TEST_F(Checkpoints, WithoutAnIndexAreTakenBack) {
  fs::create_directories(path(std::string(kIndexName)));
  EXPECT_THAT(failed_save(directory_, 3, nothing), Each(HasSubstr("rank 0: cannot write")));
  EXPECT_EQ(files(), std::vector<std::string>{std::string(kIndexName)});
}

TEST_F(Checkpoints, ThatMissAnElementAreABug) {
  const WholeState state = whole_state(0);
  test::run_ranks(3, [&](Communicator& comm) {
    Shard shard(state, comm.rank(), 3, 0);
    shard.take(state);
    shard.tensors[0].blocks[0].primary = false;
    EXPECT_THROW(save_checkpoint(directory_, {}, shard.tensors, comm), Internal);
  });
  EXPECT_TRUE(files().empty());
}

TEST_F(Checkpoints, OfNamesThatNoIndexCanHoldAreRefused) {
  const auto error = [&](const std::string& name) {
    std::string text = "saved";
    WholeState state = whole_state(0);
    state[0].shard.info.name = name;
    Shard shard(state, 0, 1, 0);
    try {
      save_checkpoint(directory_, {}, shard.tensors, *make_local_communicators(1)[0]);
    } catch (const InvalidArgument& refused) {
      text = refused.what();
    }
    return text;
  };
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("a\nb"), HasSubstr("control character"));
  EXPECT_THAT(error("\xff"), HasSubstr("not UTF-8"));
  EXPECT_THAT(error("__metadata__"), HasSubstr("'__metadata__'"));
  EXPECT_THAT(error("counts"), HasSubstr("given twice"));
}

}  // namespace
}  // namespace muster::engine
