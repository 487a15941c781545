#include "comm/mpi/mpi_world.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "comm/backoff.h"
#include "comm/mpi/mpi_library.h"
#include "muster/error.h"

namespace muster::comm::mpi {

namespace {

constexpr std::chrono::milliseconds kLookInterval{100};
constexpr std::chrono::milliseconds kCancelTime{200};
constexpr int64_t kNear = 100;  // operations; less than half of the fewest numbers tags can have, 256

Tags make_tags(MPI_Comm comm, const Limits& limits) {
  int* largest = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(comm, MPI_TAG_UB, &largest, &found), "MPI_Comm_get_attr");
  const int bits = std::bit_width(static_cast<unsigned>(found ? *largest : 32767) + 1) - 1;
  Tags tags;
  tags.sequence_bits = limits.sequence_bits > 0 ? limits.sequence_bits : (bits + 1) / 2;
  tags.hash_bits = bits - tags.sequence_bits;
  return tags;
}

MPI_Comm duplicate_world(Clock::time_point deadline) {
  auto comm = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, comm.get(), &request), "MPI_Comm_idup");
  comm.reset(finish(request, comm.release(), deadline, "MPI_Comm_idup"));
  check(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return *comm;
}

}  // namespace

int Tags::tag(int64_t sequence, std::string_view name, int64_t bytes) const {
  base::Hash hash;
  hash.add(std::as_bytes(std::span(name)));
  hash.add(bytes);
  const int64_t number = sequence & ((int64_t{1} << sequence_bits) - 1);
  return static_cast<int>(number << hash_bits | static_cast<int64_t>(hash.value() >> (64 - hash_bits)));
}

int64_t Tags::distance(int tag, int64_t sequence) const {
  const int64_t numbers = int64_t{1} << sequence_bits;
  const int64_t ahead = ((tag >> hash_bits) - sequence) & (numbers - 1);
  return ahead < numbers / 2 ? ahead : ahead - numbers;
}

World::World(const CommOptions& options, const Limits& limits) : WorldBase(0, 1, options.timeout), limits_(limits) {
  const Clock::time_point deadline = deadline_after(timeout_);
  initialize();
  opened();
  comm_ = duplicate_world(deadline);
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  tags_ = make_tags(comm_, limits_);
  left_at_.resize(static_cast<size_t>(size_));
  control_ = std::make_unique<Control>(duplicate_world(deadline), deadline);
}

World::~World() {
  bool done = false;
  try {
    done = finalized() || close();
  } catch (const Error&) {
  }
  // Otherwise the control communicator leaks, which keeps MPI_Finalize from being called: MPI may still write into its
  // buffers. A notice that came after the end of a dead communicator once went into freed memory.
  if (!done) static_cast<void>(control_.release());
}

bool World::close() {
  if (failure_) return false;
  control_->tell(Notice::Kind::kLeft, operations_, "");
  const Clock::time_point deadline = deadline_after(timeout_);
  for (Backoff backoff; !all_left(); backoff.pause()) {
    if (failure_ || Clock::now() >= deadline) return false;
  }
  control_->close();
  check(MPI_Comm_free(&comm_), "MPI_Comm_free");
  closed();
  return true;
}

bool World::all_left() {
  read_notices();
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || left_at_[peer]) continue;
    if (control_->is_gone(peer)) fail(fmt::format("rank {} died", peer));
    return false;
  }
  return true;
}

std::unique_ptr<Operation> World::post(Posting posting) {
  const std::lock_guard lock(mutex_);
  // Notices first: a late rank must learn that the others have given up before it finds their messages.
  if (!failure_) read_notices();
  if (failure_) raise(posting.name);
  auto operation = std::make_unique<Operation>();
  operation->posting = std::move(posting);
  operation->sequence = operations_++;
  operation->next_look = Clock::now() + kLookInterval;
  under_way_.push_back(operation.get());
  try {
    // Receives first, so that messages that arrive match one.
    for (const Receive& receive : operation->posting.receives) {
      start_pieces(*operation, receive.peer, receive.data, receive.bytes, Operation::Piece::Kind::kReceive);
    }
    for (const Send& send : operation->posting.sends) {
      start_pieces(*operation, send.peer, const_cast<void*>(send.data), send.bytes, Operation::Piece::Kind::kSend);
    }
  } catch (const CommError& error) {
    fail(error.failure().within(operation->posting.name));
    raise(operation->posting.name);
  }
  if (operation->open == 0) std::erase(under_way_, operation.get());
  operation->finished.resize(operation->requests.size());
  operation->statuses.resize(operation->requests.size());
  return operation;
}

// Full pieces, then one that is not full and may be empty: ranks that disagree on the bytes always see a piece that is
// too long or too short.
void World::start_pieces(Operation& operation, int32_t peer, void* data, int64_t bytes, Operation::Piece::Kind kind) {
  auto* at = static_cast<std::byte*>(data);
  const int tag = tags_.tag(operation.sequence, operation.posting.name, bytes);
  for (int64_t size = limits_.piece_bytes; size == limits_.piece_bytes; at += size, bytes -= size) {
    size = std::min(bytes, limits_.piece_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    if (kind == Operation::Piece::Kind::kSend) {
      check(MPI_Isend(at, static_cast<int>(size), MPI_BYTE, peer, tag, comm_, &request), "MPI_Isend");
    } else {
      check(MPI_Irecv(at, static_cast<int>(size), MPI_BYTE, peer, tag, comm_, &request), "MPI_Irecv");
    }
    operation.requests.push_back(request);
    operation.pieces.push_back({peer, size, kind});
    ++operation.open;
  }
}

bool World::advance(Operation& operation, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  if (operation.open == 0) return true;
  if (failure_) raise(operation.posting.name);
  take_finished(operation);
  if (!failure_ && operation.open > 0) {
    read_notices();
    const Clock::time_point now = Clock::now();
    if (!failure_ && now >= operation.next_look) {
      operation.next_look = now + kLookInterval;
      look_for_trouble(operation);
    }
    if (!failure_ && now >= deadline) fail(late(operation.posting.name, open_peers(operation), timeout_));
  }
  if (operation.open == 0) std::erase(under_way_, &operation);
  if (failure_) raise(operation.posting.name);
  return operation.open == 0;
}

void World::take_finished(Operation& operation) {
  const int count = static_cast<int>(operation.requests.size());
  int found = 0;
  const int code =
      MPI_Testsome(count, operation.requests.data(), &found, operation.finished.data(), operation.statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    fail(fmt::format("{}: {}", operation.posting.name, error_text(code)));
    return;
  }
  for (int i = 0; i < found; ++i) {
    const MPI_Status& status = operation.statuses[i];
    const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    take_piece(operation, static_cast<size_t>(operation.finished[i]), error, status);
  }
}

// A piece that failed stays open, and so does its operation.
void World::take_piece(Operation& operation, size_t index, int error, const MPI_Status& status) {
  const Operation::Piece& piece = operation.pieces[index];
  const std::string& name = operation.posting.name;
  const bool receives = piece.kind == Operation::Piece::Kind::kReceive;
  if (error != MPI_SUCCESS) {
    int error_class = error;
    MPI_Error_class(error, &error_class);
    if (error_class == MPI_ERR_TRUNCATE) {
      const int64_t expected = find_receive(operation.posting, piece.peer)->bytes;
      fail(fmt::format("{}: rank {} sends more bytes to rank {} than the {} it expects", name, piece.peer, rank_,
                       expected));
    } else {
      fail(fmt::format("{}: {} rank {}: {}", name, receives ? "from" : "to", piece.peer, error_text(error)));
    }
    return;
  }
  int bytes = 0;
  if (receives && MPI_Get_count(&status, MPI_BYTE, &bytes) == MPI_SUCCESS && bytes < piece.bytes) {
    // All pieces before this one were full.
    int64_t sent = bytes;
    for (size_t i = 0; i < index; ++i) {
      if (operation.pieces[i].peer == piece.peer) sent += operation.pieces[i].bytes;
    }
    fail(bytes_differ(name, {rank_, nullptr, sent}, piece.peer, find_receive(operation.posting, piece.peer)->bytes));
    return;
  }
  --operation.open;
}

void World::read_notices() try {
  while (const std::optional<Notice> notice = control_->poll()) {
    if (notice->kind == Notice::Kind::kLeft) {
      left_at_[notice->rank] = notice->operations;
    } else {
      return die({notice->cause, notice->code});
    }
  }
} catch (const CommError& error) {
  die(error.failure());
}

// Runs ten times per second while a rank waits; errors that it finds would otherwise be reported as timeouts.
void World::look_for_trouble(Operation& operation) {
  const std::string& name = operation.posting.name;
  std::vector<int32_t> gone;
  for (const int32_t peer : open_peers(operation)) {
    if (left_at_[peer] && *left_at_[peer] <= operation.sequence) gone.push_back(peer);
    if (left_at_[peer] || !control_->is_gone(peer)) continue;
    read_notices();  // its last notice, if any, explains more
    return fail(fmt::format("{}: rank {} died", name, peer));
  }
  if (!gone.empty()) return fail(left(name, gone));

  for (const Receive& receive : operation.posting.receives) {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(receive.peer, MPI_ANY_TAG, comm_, &found, &status) != MPI_SUCCESS || !found) continue;
    explain_unexpected(operation, receive, status);
    if (failure_) return;
  }
}

// All operations up to this one have posted their receives. An unexpected message of one of them is an error; one of a
// later operation is early.
void World::explain_unexpected(const Operation& operation, const Receive& receive, const MPI_Status& status) {
  const std::string& name = operation.posting.name;
  const int64_t distance = tags_.distance(status.MPI_TAG, operation.sequence);
  // Numbers wrap, so a number far behind may be one far ahead.
  if (distance > 0 || distance <= -kNear) return;
  if (distance < 0) {
    return fail(fmt::format("{}: rank {} sent rank {} a message {} operations ago that it did not expect", name,
                            receive.peer, rank_, -distance));
  }
  if (status.MPI_TAG == tags_.tag(operation.sequence, name, receive.bytes)) return;
  int bytes = 0;
  if (MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) return;
  if (bytes < limits_.piece_bytes && status.MPI_TAG == tags_.tag(operation.sequence, name, bytes)) {
    fail(bytes_differ(name, {rank_, nullptr, bytes}, receive.peer, receive.bytes));
  } else if (bytes < limits_.piece_bytes || receive.bytes < limits_.piece_bytes) {
    fail(fmt::format("ranks disagree: rank {} calls {}, rank {} calls something else", rank_, name, receive.peer));
  } else {
    fail(
        fmt::format("ranks disagree: rank {} calls {} and expects {} bytes, rank {} calls something else or sends "
                    "another number of bytes",
                    rank_, name, receive.bytes, receive.peer));
  }
}

std::vector<int32_t> World::open_peers(const Operation& operation) const {
  std::vector<int32_t> peers;
  for (size_t i = 0; i < operation.requests.size(); ++i) {
    if (operation.requests[i] != MPI_REQUEST_NULL) peers.push_back(operation.pieces[i].peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void World::abort(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  fail(aborted(rank_, reason));
}

void World::fail(const Failure& cause) {
  if (failure_) return;
  die(cause);
  control_->tell(Notice::Kind::kFailed, operations_, cause);
}

// Callers free their buffers after this, so receives that no message has matched yet are cancelled. Messages in
// transfer cannot be cancelled; they progress only inside MPI calls, and this communicator makes no more of them.
void World::die(Failure cause) {
  failure_ = std::move(cause);
  const Clock::time_point deadline = Clock::now() + kCancelTime;
  for (Operation* operation : under_way_) {
    for (size_t i = 0; i < operation->requests.size(); ++i) {
      MPI_Request& request = operation->requests[i];
      if (request == MPI_REQUEST_NULL || operation->pieces[i].kind != Operation::Piece::Kind::kReceive) continue;
      MPI_Cancel(&request);
      Backoff backoff;
      for (int done = 0; !done; backoff.pause()) {
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || Clock::now() >= deadline) break;
      }
    }
  }
  under_way_.clear();
}

}  // namespace muster::comm::mpi
