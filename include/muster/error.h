// The errors Muster throws. Messages are one line and carry the offending name and value.
#pragma once

#include <stdexcept>

namespace muster {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller gave something that cannot work; nothing was changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A peer or the network failed; the communicator is dead afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

class DeviceError : public Error {
 public:
  using Error::Error;
};

// A bug in Muster.
class Internal : public Error {
 public:
  using Error::Error;
};

}  // namespace muster
