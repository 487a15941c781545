// Another value in place of one, as long as this lives. What was there keeps its address.
#pragma once

#include <utility>

namespace muster::engine {

template <typename T>
class Lent {
 public:
  Lent(T& place, T other) : place_(place), own_(std::exchange(place, std::move(other))) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { place_ = std::move(own_); }

 private:
  T& place_;
  T own_;
};

}  // namespace muster::engine
