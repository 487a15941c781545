// One rank's view of MPI_COMM_WORLD: its operations, and what other ranks say.
//
// A message's tag says what it is: the number of its operation and a hash of the operation's name and the message's
// bytes, as many bits of each as MPI's largest tag allows. MPI keeps the order of messages between two ranks that bear
// one tag, and all ranks start operations in one order, so numbers may wrap. A message that its receiver does not
// expect thus matches nothing, and a rank that has waited for a while finds it lying there and can tell what its peer
// did instead. That costs nothing when all is well, and it keeps messages out of buffers that are too small: Open
// MPI 4.1 reports MPI_ERR_TRUNCATE, but where it copies between processes (300,000 bytes into 200,000) it writes past
// the end.
#pragma once

#include <optional>
#include <vector>

#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_control.h"
#include "comm/world.h"

namespace muster::comm::mpi {

// Where numbers and hashes sit in a tag.
struct Tags {
  int32_t sequence_bits = 0;
  int32_t hash_bits = 0;

  int tag(int64_t sequence, std::string_view name, int64_t bytes) const;
  // How many operations the tag's is after `sequence`, if near.
  int64_t distance(int tag, int64_t sequence) const;
};

// One rank's part of one operation.
struct Operation {
  struct Piece {
    int32_t peer = 0;
    int64_t bytes = 0;
    enum class Kind : uint8_t { kSend, kReceive } kind = Kind::kSend;
  };
  Posting posting;
  int64_t sequence = 0;
  std::vector<MPI_Request> requests;  // a null request is done
  std::vector<Piece> pieces;          // of each request
  int64_t open = 0;
  std::vector<int> finished;  // scratch of MPI_Testsome
  std::vector<MPI_Status> statuses;
  Clock::time_point next_look;  // when to look for errors again
};

class World : public WorldBase {
 public:
  // Collective: all ranks call it.
  World(const CommOptions& options, const Limits& limits);
  // Leaves, and waits until all ranks have.
  ~World();

  std::unique_ptr<Operation> post(Posting posting);
  // True once the operation is done. Fails past the deadline.
  bool advance(Operation& operation, Clock::time_point deadline);
  void abort(std::string_view reason);

 private:
  void start_pieces(Operation& operation, int32_t peer, void* data, int64_t bytes, Operation::Piece::Kind kind);
  void take_finished(Operation& operation);
  void take_piece(Operation& operation, size_t index, int error, const MPI_Status& status);
  void read_notices();
  void look_for_trouble(Operation& operation);
  void explain_unexpected(const Operation& operation, const Receive& receive, const MPI_Status& status);
  std::vector<int32_t> open_peers(const Operation& operation) const;
  // Ends every operation of this rank and tells the others. The first cause stays.
  void fail(const Failure& cause);
  void die(Failure cause);
  bool close();
  bool all_left();

  Limits limits_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<Control> control_;
  Tags tags_;
  int64_t operations_ = 0;                       // started here
  std::vector<std::optional<int64_t>> left_at_;  // by rank: the operations it had started when it left
  std::vector<Operation*> under_way_;
};

}  // namespace muster::comm::mpi
