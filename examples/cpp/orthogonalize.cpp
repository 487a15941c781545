// A Muon step of one's own: two matrices in one call.
#include "muster/orthogonalize.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "muster/error.h"

constexpr int kMatrices = 2, kRows = 32, kColumns = 16, kSteps = 100;

int main() try {
  std::vector<float> weights(kMatrices * kRows * kColumns), momentum(weights.size()), update(weights.size());
  const muster::Orthogonalization updates{.matrices = update.data(),
                                          .count = kMatrices,
                                          .rows = kRows,
                                          .columns = kColumns,
                                          .coefficients = muster::coefficients("capped3")};
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const float gradient = weights[i] - std::sin(static_cast<float>(i * i));
      loss += gradient * gradient;
      momentum[i] += 0.05f * (gradient - momentum[i]);
      update[i] = gradient + 0.95f * (momentum[i] - gradient);
    }
    if (step % 33 == 0) std::printf("step %3d  loss %7.2f\n", step, loss);

    muster::orthogonalize(updates);  // in place

    const float lr = 0.2f * (1 - static_cast<float>(step) / kSteps);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= lr * update[i];
  }
} catch (const muster::Error& error) {
  std::fprintf(stderr, "orthogonalize: %s\n", error.what());
  return 1;
}
