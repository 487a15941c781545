// A step on the host: what ranks agree on is known when the control reduction returns.
#pragma once

#include <cstdint>

#include "engine/step/step_path.h"

namespace muster::engine {

class HostStep final : public StepPath {
 public:
  using StepPath::StepPath;

  const StepStats& step(const StepRequest& request) override;
  void begin(const StepRequest& request) override;
  void ready(int32_t parameter, void* gradient) override;
  const StepStats& finish(const StepRequest& request) override;
  double grad_norm(const StepRequest& request) override;

 private:
  void compute(const StepRequest& request, const ControlReduction::Decision& decision);
  template <typename TookPart>
  void count_updates(TookPart took_part);
};

}  // namespace muster::engine
