#include "run/memory_need.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "run/run_support.h"

namespace muster::run {
namespace {

// A file system with only the files that available_memory() reads.
class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_.string() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  int64_t available() const { return available_memory(root_.string()); }

  const std::filesystem::path root_ =
      std::filesystem::path(::testing::TempDir()) /
      ("memory-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(AvailableMemory, IsUnlimitedIfNothingIsKnown) { EXPECT_EQ(available(), std::numeric_limits<int64_t>::max()); }

TEST_F(AvailableMemory, IsWhatTheKernelCanGive) {
  write("/proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    3000 kB\nBuffers: 1 kB\n");
  EXPECT_EQ(available(), 3000 * 1024);
}

TEST_F(AvailableMemory, KeepsTheLimitsOfAllCgroupsAround) {
  write("/proc/meminfo", "MemAvailable: 3000 kB\n");
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "4096\n");
  write("/sys/fs/cgroup/outer/memory.max", "1000000\n");
  write("/sys/fs/cgroup/outer/memory.current", "400000\n");
  EXPECT_EQ(available(), 600000);
  write("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\nactive_file 2\n");
  EXPECT_EQ(available(), 700000);
  write("/sys/fs/cgroup/outer/inner/memory.max", "100000\n");
  EXPECT_EQ(available(), 100000 - 4096);
  write("/sys/fs/cgroup/outer/inner/memory.max", "1000\n");
  EXPECT_EQ(available(), 0);
}

// In a container the path of /proc/self/cgroup is often not there: its own cgroup is the root of the mount.
TEST_F(AvailableMemory, KeepsTheLimitsOfVersion1) {
  write("/proc/meminfo", "MemAvailable: 3000 kB\n");
  write("/proc/self/cgroup", "5:devices:/elsewhere\n4:hugetlb,memory:/not/visible\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  EXPECT_EQ(available(), 1500000);
  write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n");
  EXPECT_EQ(available(), 1700000);
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), 3000 * 1024);
}

TEST(MemoryNeed, CountsWeightsGradientsAndState) {
  Problem problem;
  problem.model = "counted";
  problem.ranks = 2;
  problem.meshes = {{"world", {{"fsdp", 2}}, {}}};
  const Layout rows{0, {Placement::shard(0)}, {}};
  const Layout whole{0, {Placement::replicate()}, {}};
  Parameter w;
  w.name = "w";
  w.shape = {8, 4};
  w.layout = rows;
  w.algorithm = Algorithm::kMuon;
  Parameter b;
  b.name = "b";
  b.shape = {10};
  b.dtype = b.grad_dtype = Dtype::kBf16;
  b.layout = whole;
  b.algorithm = Algorithm::kAdamW;
  problem.parameters = {w, b};
  const Workload workload(problem);
  // Weights 4 and 2 bytes, momentum 4, two moments 8 that the replicas share, gradients 4 and 2.
  EXPECT_EQ(bench_memory(workload, 0, 1).device, 16 * (4 + 4 + 4) + 10 * (2 + 2) + 5 * 8);
  EXPECT_EQ(bench_memory(workload, 0, 3).device, 16 * (3 * (4 + 4) + 4) + 10 * (3 * 2 + 2) + 3 * 5 * 8);
  EXPECT_EQ(verify_memory(workload, 1, 3).device, 16 * (4 + 4 + 3 * 4) + 10 * (2 + 3 * 2) + 5 * 8);
  EXPECT_EQ(verify_memory(workload, 1, 3).host, 16 * 4 + 10 * 2);
  EXPECT_EQ(verify_memory(workload, kWhole, 1).device, 32 * (4 + 4 + 4) + 10 * (2 + 8 + 4));
}

}  // namespace
}  // namespace muster::run
