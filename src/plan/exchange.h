// What one rank sends and receives in one wave, generated for that rank alone.
//
// Sender and receiver compute the same segments in the same order, without communication: by matrix, then by the runs
// of the matrix and of the holder's shard; element ranges last. Four-byte elements come before two-byte ones, so that
// every segment is aligned to its elements without padding.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/run.h"
#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/matrices.h"
#include "plan/normuon_statistics.h"

namespace muster::plan {

struct Segment {
  int32_t parameter = 0;
  int32_t matrix = -1;  // -1: a range of an elementwise parameter
  // Where the piece sits in the holder's shard (first) and in the matrix (second); for a range, in both the shard.
  layout::Intersection piece;
  int64_t offset = 0;  // in its message, in bytes; packed row-major. What no segment covers is zeros

  int64_t elements() const { return piece.box.volume(); }
};

// NorMuon's statistics of a matrix that the holder of a parameter keeps (plan/normuon_statistics.h): f32, before
// everything else.
struct LineSegment {
  int32_t parameter = 0;
  int32_t matrix = 0;
  NormuonStatistics::Part part;
  int64_t offset = 0;  // in its message, in bytes
};

struct Message {
  int32_t peer = 0;
  int64_t bytes = 0;          // padding included
  int64_t padding_bytes = 0;  // zeros
  std::vector<LineSegment> lines;
  std::vector<Segment> segments;
};

struct Exchange {
  std::vector<Message> sends;     // ascending peer, none empty
  std::vector<Message> receives;  // ascending peer, none empty
  std::vector<Segment> local;     // holder and owner are the same rank
  std::vector<LineSegment> local_lines;
};

// Holders to owners, and owners to holders. `active` says which parameters take part; empty: all.
Exchange exchange_in(const Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave,
                     const std::vector<bool>& active = {});
Exchange exchange_out(const Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave,
                      const std::vector<bool>& active = {});

}  // namespace muster::plan
