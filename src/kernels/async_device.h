// A device whose calls return before their work is done: how a step is captured and replayed there, how its streams are
// ordered, and what ranks agree on without the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace muster::kernels {

// A step is begin_step(), its calls, and end_step(). With capture, its calls are made in up to two passes: a dry run,
// which only uploads arguments and computes the step's key, and, unless a graph with that key is replayed instead, the
// calls once more, which are carried out the first time and captured the second. Two steps have the same key if they
// make the same calls with the same counts, shapes and types; pointers and numbers may differ.
//
// A piecewise step is begin_piecewise(), then calls between resume() and pause() as often as there is something to do,
// on any thread of the host, and end_step() after the last of them. Its calls are carried out as they are made.
class GraphStep {
 public:
  virtual ~GraphStep() = default;

  // Without `capture`, the step is carried out call by call: for debugging and for taking times.
  virtual void begin_step(bool capture) = 0;
  // False: nothing was launched. The caller makes the step's calls again, after another begin_step().
  virtual bool end_step() = 0;
  virtual void begin_piecewise() = 0;
  virtual void resume() = 0;  // the calls that follow wait for what the caller's stream has so far
  virtual void pause() noexcept = 0;
  // Calls upload arguments and launch nothing. Work that does not go through this device must be left out, too.
  virtual bool dry_run() const = 0;
  // Abandons a step that is under way, drops every captured graph, and waits for what was enqueued.
  virtual void drop_graphs() = 0;
  // Reserves table space for twice these calls, which are a dry run. Call it before the first step; growing later drops
  // every captured graph.
  virtual void reserve_table(const std::function<void()>& calls) = 0;

  // Adds what distinguishes this step from others, apart from the launches of kernels.
  virtual void add_to_key(std::span<const int64_t> numbers) = 0;
  // Equal for coefficients whose iterations make the same launches, whatever the shape.
  virtual int64_t call_pattern(const Coefficients& coefficients) const = 0;
  // Makes calls that `inputs` alone determine. Returns false if it did not have to: in a dry run whose predecessor made
  // them with the same inputs, what they uploaded is uploaded again.
  virtual bool memoize(std::span<const int64_t> inputs, const std::function<void()>& calls) = 0;

  virtual int64_t launches() const = 0;  // in the last step, replayed ones included
  virtual bool replayed() const = 0;     // the last step replayed a graph that an earlier step captured
};

// The order of streams; every void* is a cudaStream_t. Kernels run on main(), exchanges on a stream of their own.
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;

  // Replaces the caller's stream: a step waits for what is enqueued there, and what is enqueued there next waits for
  // it.
  virtual void follow(void* caller) = 0;
  virtual void* main() = 0;
  // Returns the stream of exchanges, which waits for what main() has so far.
  virtual void* fork() = 0;
  virtual int record_event() = 0;    // of what the stream of exchanges has so far
  virtual void join(int event) = 0;  // main() waits for the event
  virtual bool idle() = 0;           // nothing is left of what was enqueued
};

// Numbers from the host. They travel in the argument table, so a replayed step has its own.
class ArgumentUpload {
 public:
  virtual ~ArgumentUpload() = default;

  virtual void upload(int64_t* device, std::span<const int64_t> words) = 0;
  // Returns where they are on the device, valid in this step only.
  virtual const Rates* upload(std::span<const Rates> rates) = 0;
  virtual void clear(void* device, int64_t bytes) = 0;
};

// What kernels go by in a step, on the device.
struct Verdict {
  double clip = 1;  // gradients are multiplied by it
  double norm = 0;  // of the gradients, if the step computes it
  int64_t go = 1;   // 0: the step changes nothing
};

// Decisions about a step, made on the device from words that all ranks have summed. They write the verdict and, per
// parameter, two flags: `active`, 0 if it sits this step out, and `sitting`, 1 if it does and the step goes. All
// pointers are to the device.

// Goes if the first `zeros` words are 0, with the parameters whose word in `present` is not 0.
struct Decision {
  const int64_t* words = nullptr;
  int64_t zeros = 0;
  const int64_t* present = nullptr;
  int32_t* active = nullptr;
  int32_t* sitting = nullptr;
  int64_t parameters = 0;
  Verdict* verdict = nullptr;
};

// Does not go if any word is not 0.
struct Refusal {
  const int64_t* words = nullptr;
  int64_t count = 0;
  int32_t* active = nullptr;
  int32_t* sitting = nullptr;
  int64_t parameters = 0;
  Verdict* verdict = nullptr;
};

// Computes the norm from `sums` sums of squares, and clips it to max_norm unless that is 0.
struct Clip {
  const int64_t* words = nullptr;
  int64_t sums = 0;
  double grad_scale = 1;
  double max_norm = 0;
  Verdict* verdict = nullptr;
};

// updates[p] += active[p].
struct Count {
  const int32_t* active = nullptr;
  int64_t parameters = 0;
  int64_t* updates = nullptr;
};

class StepDecisions {
 public:
  virtual ~StepDecisions() = default;

  virtual void decide(const Decision& decision) = 0;
  virtual void refuse(const Refusal& refusal) = 0;
  virtual void clip(const Clip& clip) = 0;
  virtual void count(const Count& count) = 0;
};

// Results of steps, which count from 1.
class StepResults {
 public:
  virtual ~StepResults() = default;

  // So many steps may be under way when begin_step() is called.
  static constexpr int64_t kStepsInFlight = 2;

  virtual int64_t step() const = 0;     // the last one that has begun
  virtual bool done(int64_t step) = 0;  // on the device; throws DeviceError
  // Copies to the host what is in these bytes after the step.
  virtual void read_back(const void* device, int64_t bytes) = 0;
  // The copy of one of the last kStepsInFlight steps. Valid once that step is done.
  virtual std::span<const std::byte> read_back_of(int64_t step) const = 0;
};

// For timelines and profilers.
class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;

  // Takes the time on the current lane or on the stream of exchanges, and returns its number; only in a step without
  // capture. times_ns() waits for the step, and returns all times by number, in ns of the steady clock.
  virtual int record_time(bool exchanges) = 0;
  virtual std::vector<int64_t> times_ns() = 0;
  // A named range in profilers.
  virtual void push_range(const std::string& name) = 0;
  virtual void pop_range() noexcept = 0;
};

class AsyncDevice : public GraphStep,
                    public StreamOrder,
                    public ArgumentUpload,
                    public StepDecisions,
                    public StepResults,
                    public DeviceTrace {};

// A named range in profilers, from construction to destruction.
class Range {
 public:
  Range(DeviceTrace& trace, const std::string& name) : trace_(trace) { trace.push_range(name); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { trace_.pop_range(); }

 private:
  DeviceTrace& trace_;
};

// A part of a piecewise step, from construction to destruction.
class Part {
 public:
  explicit Part(GraphStep& step) : step_(step) { step.resume(); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { step_.pause(); }

 private:
  GraphStep& step_;
};

}  // namespace muster::kernels
