// A rank's memory where its optimizer wants it: on the CPU the caller's own, on another device copies of it.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "backends.h"

namespace muster::test {

class DeviceCopies {
 public:
  explicit DeviceCopies(const Device& device) {
    if (device.kind != Device::Kind::kCpu) kernels_ = make_kernels({device.kind, device.index, nullptr}, 1);
  }
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;
  ~DeviceCopies() {
    for (void* const copy : copies_) kernels_->release(copy);
  }

  // Kept until this object goes: a step may still read it when it has returned.
  void* upload(std::vector<std::byte>& bytes) {
    if (kernels_ == nullptr || bytes.empty()) return bytes.data();
    copies_.push_back(kernels_->allocate(static_cast<int64_t>(bytes.size())));
    kernels_->write(copies_.back(), bytes.data(), {1, static_cast<int64_t>(bytes.size()), 0, 0});
    return copies_.back();
  }
  // A copy that belongs to this object, on the CPU too.
  void* keep(const std::vector<std::byte>& bytes) {
    kept_.push_back(bytes);
    return upload(kept_.back());
  }
  // To where an earlier upload is, which nothing may be using.
  void upload(std::vector<std::byte>& bytes, void* copy) {
    if (kernels_ == nullptr) {
      std::memcpy(copy, bytes.data(), bytes.size());
    } else if (!bytes.empty()) {
      kernels_->write(copy, bytes.data(), {1, static_cast<int64_t>(bytes.size()), 0, 0});
    }
  }
  void download(const void* copy, std::vector<std::byte>& bytes) {
    if (bytes.empty()) return;
    if (kernels_ == nullptr) {
      std::memmove(bytes.data(), copy, bytes.size());
      return;
    }
    kernels_->read(bytes.data(), copy, {1, static_cast<int64_t>(bytes.size()), 0, 0});
  }

 private:
  std::unique_ptr<kernels::Kernels> kernels_;  // null: the CPU
  std::vector<void*> copies_;
  std::deque<std::vector<std::byte>> kept_;
};

}  // namespace muster::test
