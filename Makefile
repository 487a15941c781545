# Every target does its own set-up: a fresh Debian with make is enough. `make JOBS=1 test` builds gently.
JOBS ?= $(shell nproc)
SECONDS ?= 60

configure = @echo "configure: $(1)"; cmake --preset $(1) >/dev/null
compile = @echo "build: $(strip $(1) $(2))"; cmake --build --preset $(1) --parallel $(JOBS) $(if $(2),--target $(2))
run_tests = @echo "test: $(1)"; ctest --preset $(1) --parallel $(JOBS)

.PHONY: build test test-torch test-frameworks demo bench bench-step asan tsan fuzz format check-format setup clean

# The release command, build/bin/muster.
build: setup
	$(call configure,release)
	$(call compile,release,muster_cli)

test: check-format
	@scripts/setup test
	$(call configure,release)
	$(call compile,release)
	$(call run_tests,release)
	@JOBS=$(JOBS) scripts/test_torch

# The PyTorch optimizers alone, in a virtual environment with PyTorch for the CPU.
test-torch: setup
	$(call configure,release)
	$(call compile,release,muster)
	@JOBS=$(JOBS) scripts/test_torch

# The PyTorch optimizers in accelerate, transformers, Lightning and torchtitan, which it downloads.
test-frameworks: setup
	$(call configure,release)
	$(call compile,release,muster)
	@JOBS=$(JOBS) scripts/test_frameworks

demo: build
	@scripts/demo

bench: setup
	$(call configure,release)
	$(call compile,release)
	@for bench in build/benchmarks/*_bench; do [ ! -x "$$bench" ] || { echo "bench: $$bench"; "$$bench"; } || exit 1; done

# A step against the usual way and torch.optim.Muon, which it downloads.
bench-step: setup
	$(call configure,release)
	$(call compile,release,step_bench)
	@benchmarks/step

asan tsan: setup
	$(call configure,$@)
	$(call compile,$@)
	$(call run_tests,$@)

# Each fuzzer for SECONDS.
fuzz:
	@scripts/setup fuzz
	$(call configure,fuzz)
	$(call compile,fuzz)
	@scripts/fuzz $(SECONDS)

format: setup
	@scripts/format

check-format: setup
	@scripts/format --check

setup:
	@scripts/setup

clean:
	rm -rf build build-asan build-tsan build-fuzz
