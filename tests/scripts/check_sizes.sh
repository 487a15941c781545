#!/usr/bin/env bash
# Files and functions of src/ are as small as CONTRIBUTING.md says, and check_sizes fails on each that is not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/plan" "$work/src/engine/step" "$work/src/kernels/cuda"

# repeat COUNT LINE
repeat() { for ((i = 0; i < $1; ++i)); do echo "$2"; done; }
pass() { "$root/scripts/check_sizes" "$work" >/dev/null; }
# expect TEXT...: it fails with these lines and no others.
expect() {
  if "$root/scripts/check_sizes" "$work" 2>"$work/said"; then
    echo "passed, expected: $*" >&2
    exit 1
  fi
  diff <(printf '%s\n' "$@") "$work/said"
}

# Files of at most 400 lines.
repeat 400 "int x;" >"$work/src/plan/file.h"
pass
repeat 401 "int x;" >"$work/src/plan/file.h"
expect "src/plan/file.h: 401 lines; at most 400"
rm "$work/src/plan/file.h"

# Functions of at most 80 lines, whatever stands around them. Nothing in comments, literals and macros counts.
function_of() {
  echo '#define OPEN {'
  echo '/* { */ namespace muster::plan {  // {'
  echo 'constexpr const char* kText[] = {"{", R"(})", "\"{"};'
  echo "const int kLarge{1'000'000}, kBrace = '{';"
  echo 'class Builder : public Base<int, 3> {'
  echo ' public:'
  echo '  template <typename T, typename U = std::vector<T>>'
  echo '  explicit Builder(std::map<int, T> map) noexcept(true)'
  echo '      : Base(map), kept_{map.size()}, all_(count({1, 2})) {'
  repeat $(($1 - 4)) '    if (kept_ < 3) all_ = [&](int x) { return x; }(1);'
  echo '  }'
  echo '};'
  echo '}  // namespace muster::plan'
}
function_of 80 >"$work/src/plan/function.cpp"
pass
function_of 81 >"$work/src/plan/function.cpp"
expect "src/plan/function.cpp:7: Builder has 81 lines; at most 80"
rm "$work/src/plan/function.cpp"

# In src/engine/ and src/kernels/, at most 5 parameters.
cat >"$work/src/engine/step/few.h" <<'CODE'
class Few {
 public:
  Few(std::map<int, std::pair<int, int>> a, int b = std::max(1, 2), int c = {}, void (*d)(int, int) = nullptr, int e = 0);
  bool operator()(int a, int b, int c, int d, int e) const;
  bool operator<(const Few& other) const { return a_ < other.a_; }
  std::function<void(int, int, int, int, int, int)> call_{};
  static constexpr Values<6> kSix{1, 2, 3, 4, 5, 6};
};
const auto six = list(1, 2, 3, 4, 5, 6);
CODE
pass
cat >"$work/src/engine/step/many.h" <<'CODE'
class Many {
 public:
  Many(int a, int b, int c, int d, int e, int f);
  virtual void run(int a, int b, int c, int d, int e, std::map<int, int> f) = 0;
  void operator()(int a, int b, int c, int d, int e, int f) const {}
};
CODE
cat >"$work/src/kernels/cuda/many.cu" <<'CODE'
template <int kRows>
__global__ void __launch_bounds__(kRows, 1)
    scale(const __grid_constant__ Map a, int b, int c, int d, int e, int f) {
  const auto add = [](int a, int b, int c, int d, int e, int f) { return a + b + c + d + e + f; };
}
CODE
cp "$work/src/engine/step/many.h" "$work/src/plan/many.h"
expect "src/engine/step/many.h:3: Many takes 6 parameters; at most 5" \
  "src/engine/step/many.h:4: run takes 6 parameters; at most 5" \
  "src/engine/step/many.h:5: operator() takes 6 parameters; at most 5" \
  "src/kernels/cuda/many.cu:1: scale takes 6 parameters; at most 5" \
  "src/kernels/cuda/many.cu:4: a lambda takes 6 parameters; at most 5"
rm "$work/src/engine/step/many.h" "$work/src/kernels/cuda/many.cu" "$work/src/plan/many.h"

# Text whose braces do not match would hide the rest of its file.
echo 'void run() {' >"$work/src/plan/open.cpp"
expect "src/plan/open.cpp: no bracket closes the { here"
rm "$work/src/plan/open.cpp"

"$root/scripts/check_sizes"
echo "all checks hold"
