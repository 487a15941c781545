// Ranks as threads of one process.
#include <utility>

#include <fmt/format.h>

#include "comm/local/group.h"
#include "comm/world.h"
#include "muster/error.h"

namespace muster::comm::local {

namespace {

class LocalCommunicator final : public Collectives {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int32_t rank) : group_(std::move(group)), rank_(rank) {}
  ~LocalCommunicator() override { group_->leave(rank_); }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return group_->size(); }
  std::chrono::milliseconds timeout() const override { return group_->timeout(); }
  void abort(std::string_view reason) override { group_->abort(rank_, reason); }

 private:
  std::unique_ptr<Request> post(Posting posting) override {
    return std::make_unique<WorldRequest<Group, std::shared_ptr<Post>>>(group_,
                                                                        group_->post(rank_, std::move(posting)));
  }

  std::shared_ptr<Group> group_;
  int32_t rank_;
};

}  // namespace

}  // namespace muster::comm::local

namespace muster {

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int32_t ranks, const CommOptions& options) {
  if (ranks < 1) throw InvalidArgument(fmt::format("make_local_communicators: {} ranks", ranks));
  comm::check_options(options);
  const auto group = std::make_shared<comm::local::Group>(ranks, options.timeout);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    communicators.push_back(std::make_unique<comm::local::LocalCommunicator>(group, rank));
  }
  return communicators;
}

}  // namespace muster
