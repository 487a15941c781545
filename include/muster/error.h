/// \file
/// The errors that Muster throws. The type says whose fault it is. what() is one line for people, with the offending
/// name and value; programs read code() and parameter() and never the text. docs/reference/errors.md says what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace muster {

/// What went wrong, where a caller can do something about it that the type of the error does not tell.
enum class ErrorCode : uint8_t {
  kOther,                   ///< nothing beyond the type of the error
  kReplicaWeightsDiffer,    ///< InvalidArgument: replicas of parameter() start from different weights
  kReplicaGradientsDiffer,  ///< InvalidArgument: replicas of parameter() have different gradients
  kScratchCapTooSmall,      ///< InvalidArgument: no plan keeps PlanOptions::scratch_bytes
  kRankMissing,             ///< CommError: a rank had not arrived when the timeout passed
  kResource,                ///< ResourceError: the machine failed
};

/// What an error says. Kept where the error is thrown again later, or on another rank.
struct Failure {
  std::string text;                    ///< one line; empty: nothing has failed
  ErrorCode code = ErrorCode::kOther;  ///< for programs
  std::string parameter{};             ///< the name of a parameter; empty unless the code is about one

  /// No failure.
  Failure() = default;
  /// A failure of code kOther.
  Failure(const char* why) : text(why) {}
  /// A failure with its code and parameter.
  Failure(std::string why, ErrorCode why_code = ErrorCode::kOther, std::string of = {})
      : text(std::move(why)), code(why_code), parameter(std::move(of)) {}

  /// True if nothing has failed.
  bool empty() const { return text.empty(); }
  /// Makes this no failure.
  void clear() { *this = {}; }
  /// The same failure as `what` reports it: "what: text".
  Failure within(const std::string& what) const { return {what + ": " + text, code, parameter}; }
  /// Both in one text; the code is the first that says more than kOther.
  Failure followed_by(const Failure& next) const {
    const Failure& coded = code == ErrorCode::kOther ? next : *this;
    return {text + "; " + next.text, coded.code, coded.parameter};
  }
};

/// The base of all errors that Muster throws.
class Error : public std::runtime_error {
 public:
  /// what() is the failure's text.
  explicit Error(Failure failure) : std::runtime_error(failure.text), failure_(std::move(failure)) {}

  /// Text, code and parameter together.
  const Failure& failure() const { return failure_; }
  /// What a program can act on.
  ErrorCode code() const { return failure_.code; }
  /// The parameter that the code is about; empty if it is about none.
  const std::string& parameter() const { return failure_.parameter; }

 private:
  Failure failure_;
};

/// The caller's mistake, and nothing was changed. Only step() with OptimizerOptions::overlap may have begun to change
/// weights; then the text says that the step broke off.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The machine failed: a full disk, a failed read or write, no memory. The same call may work later.
class ResourceError : public Error {
 public:
  /// The failure, with code kResource.
  explicit ResourceError(Failure failure) : Error(coded(std::move(failure))) {}

 private:
  static Failure coded(Failure failure) {
    failure.code = ErrorCode::kResource;
    return failure;
  }
};

/// A peer or the network failed. The communicator is unusable afterwards: every later call on it throws the same cause.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A call of CUDA or one of its libraries failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A bug in Muster: please report it.
class Internal : public Error {
 public:
  using Error::Error;
};

}  // namespace muster
