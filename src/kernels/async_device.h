// A device whose calls return before their work is done: its order, a step that is recorded once and replayed, and what
// ranks agree upon without the host.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace muster::kernels {

// What a step goes by, on the device.
struct Verdict {
  double clip = 1;  // gradients are multiplied with it
  double norm = 0;  // of the gradients, where it was asked for
  int64_t go = 1;   // 0: nothing is changed
};

// A step is a sequence of calls between begin_step() and end_step(). The first is carried out as it is made. Later ones
// are recorded, and as long as a step makes the same calls (other pointers and numbers are fine, other counts, shapes
// and types are not), making them only refreshes a table that the recorded kernels read, and end_step() starts them
// all at once.
//
// Or a step comes in parts: begin_parts(), then calls between resume() and pause(), carried out as they are made, as
// often as there is something to do, on whatever thread of the host; end_step() after the last of them.
class AsyncDevice {
 public:
  virtual ~AsyncDevice() = default;

  // `record` false: carried out as it is made, for whoever looks for an error or takes the time of its parts.
  virtual void begin_step(bool record) = 0;
  // False: the calls differ from those recorded and nothing was started. They are to be made again, after
  // begin_step(true), and are recorded anew.
  virtual bool end_step() = 0;
  // Room for the numbers of twice as many calls as these, which are not carried out: before the first step. Who needs
  // more later records all steps anew.
  virtual void reserve_table(const std::function<void()>& calls) = 0;
  virtual void begin_piecewise() = 0;
  virtual void resume() = 0;  // what is called next waits for what the caller's stream was given so far
  virtual void pause() noexcept = 0;
  // Calls refresh the table only: what others would enqueue has been recorded as well.
  virtual bool dry_run() const = 0;
  // Forgets what was recorded, and waits for it.
  virtual void drop_graphs() = 0;

  // From now on this is the caller's stream, whose order with steps is kept.
  virtual void follow(void* caller) = 0;

  // Something beside kernels that distinguishes this step from others.
  virtual void add_to_key(std::span<const int64_t> numbers) = 0;
  // Equal for sets whose iterations are the same calls, whatever the shape: other numbers are fine.
  virtual int64_t call_pattern(const Coefficients& coefficients) const = 0;

  // Exchanges have a stream (a cudaStream_t) of their own beside that of the kernels. fork() makes it wait for what the
  // kernels were given so far; mark() numbers what it was given; join() makes the kernels wait for that.
  virtual void* fork() = 0;
  virtual int record_event() = 0;
  virtual void join(int mark) = 0;
  virtual void* main() = 0;  // the stream of the kernels

  // Makes calls that are decided by `inputs` alone; but not where a recorded step may be replayed and the last one had
  // the same inputs: then what they put is put again, and false returned.
  virtual bool memoize(std::span<const int64_t> inputs, const std::function<void()>& calls) = 0;

  // Numbers for the device, from a table that a recorded step refreshes: to some place, or where they are in this step.
  virtual void upload(int64_t* device, std::span<const int64_t> words) = 0;
  virtual const Rates* upload(std::span<const Rates> rates) = 0;
  virtual void clear(void* device, int64_t bytes) = 0;

  // Each of these reads words that all ranks have summed, and changes the verdict and `active`, a word a parameter.
  // Go, with the parameters whose word in `present` is not 0, if the first `zeros` words are 0.
  virtual void decide(const int64_t* words, int64_t zeros, const int64_t* present, std::span<int32_t> active,
                      Verdict* verdict) = 0;
  // Do not go if any word is not 0.
  virtual void refuse(std::span<const int64_t> words, std::span<int32_t> active, Verdict* verdict) = 0;
  // `sums` sums of squares; clips to max_norm unless it is 0.
  virtual void clip(const int64_t* words, int64_t sums, double grad_scale, double max_norm, Verdict* verdict) = 0;
  // updates[p] += active[p].
  virtual void count(std::span<const int32_t> active, int64_t* updates) = 0;

  // Copies to the host what `bytes` at `device` are after this step; sent() says for which step it arrived.
  virtual void read_back(const void* device, int64_t bytes) = 0;

  virtual int64_t launches() const = 0;  // in the last step, replayed ones included
  virtual bool replayed() const = 0;     // the last step was recorded before, and started all at once

  virtual bool idle() = 0;  // nothing that was enqueued is left

  // A step is over on the device. Steps have numbers from 1, by begin_step().
  virtual int64_t step() const = 0;
  virtual bool done(int64_t step) = 0;                                      // throws DeviceError
  virtual std::span<const std::byte> read_back_of(int64_t step) const = 0;  // of one of the last kStepsInFlight
  static constexpr int64_t kStepsInFlight = 2;  // begin_step() may be called while so many are not done

  // Times, when nothing is recorded: stamp() marks a place in the current lane, or in the stream of exchanges, and
  // stamps_ns() waits and gives them all, by the steady clock.
  virtual int record_time(bool exchanges) = 0;
  virtual std::vector<int64_t> times_ns() = 0;

  // A named range in profilers.
  virtual void push_range(const std::string& name) = 0;
  virtual void pop_range() noexcept = 0;
};

// Such a range, as long as it lives.
class Range {
 public:
  Range(AsyncDevice& stream, const std::string& name) : stream_(stream) { stream.push_range(name); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { stream_.pop_range(); }

 private:
  AsyncDevice& stream_;
};

// A part of a step, as long as it lives.
class Part {
 public:
  explicit Part(AsyncDevice& stream) : stream_(stream) { stream.resume(); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { stream_.pause(); }

 private:
  AsyncDevice& stream_;
};

}  // namespace muster::kernels
