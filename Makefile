# Every target does its own set-up: a fresh Debian with make is enough. `make JOBS=1 test` builds gently.
# `make build ARCHITECTURES=all` compiles CUDA for every architecture, not only for this machine's GPU; CMake remembers it.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
SECONDS ?= 60
MINUTES ?= 10
HOURS ?= 1
SEED ?=
ARCHITECTURES ?=
export ARCHITECTURES JOBS

# part NAME COMMAND: says how long it took.
part = @echo "$(1)"; begin=$$SECONDS; $(2) && echo "$(1): $$((SECONDS - begin)) s"
configure = $(call part,configure: $(1),cmake --preset $(1) $(if $(ARCHITECTURES),'-DMUSTER_CUDA_ARCHITECTURES=$(ARCHITECTURES)') >/dev/null)
compile = $(call part,build: $(strip $(1) $(2)),cmake --build --preset $(1) --parallel $(JOBS) $(if $(2),--target $(2)))
run_tests = $(call part,test: $(1),ctest --preset $(1) --parallel $(JOBS))

.PHONY: build test test-torch test-frameworks wheel test-wheel test-install docs demo bench bench-step asan tsan fuzz chaos soak format check-format setup clean

# The release command, build/bin/muster.
build: setup
	$(call configure,release)
	$(call compile,release,muster_cli)

test: check-format
	@scripts/setup test
	$(call configure,release)
	$(call compile,release)
	$(call part,docs,scripts/docs)
	$(call run_tests,release)
	$(call part,test: PyTorch,scripts/test_torch)
	$(call part,test: chaos,scripts/chaos 2)

# The PyTorch optimizers alone, in a virtual environment with PyTorch for the CPU.
test-torch: setup
	$(call configure,release)
	$(call compile,release,muster)
	$(call part,test: PyTorch,scripts/test_torch)

# The PyTorch optimizers in accelerate, transformers, Lightning and torchtitan, which it downloads.
test-frameworks: setup
	$(call configure,release)
	$(call compile,release,muster)
	$(call part,test: frameworks,scripts/test_frameworks)

# build/dist/muster-*.whl, for other machines. PYTHON=python3.12 chooses the interpreter.
wheel: setup
	$(call part,wheel,scripts/wheel)

# The wheel in a new environment without compilers; PyTorch is downloaded.
test-wheel: wheel
	$(call part,test: wheel,scripts/try_wheel)

# `pip install .` in a new environment, which compiles everything.
test-install: setup
	$(call part,test: pip install,scripts/try_install)

# The documentation site, build/docs/index.html: the pages, and the API from docstrings and headers. It compiles nothing.
docs:
	@scripts/setup docs
	$(call part,docs,scripts/docs)

# It trains on the CPU: a release command that is newer than its sources serves as it is. Else it builds one without CUDA,
# tests and benchmarks, and nothing else.
demo_sources = src tools include presets data cmake CMakeLists.txt
demo_build = $(if $(shell [ -x build/bin/muster ] && find $(demo_sources) -newer build/bin/muster -print -quit || echo none),build-demo,build)
demo: demo_in := $(demo_build)
demo:
	@scripts/setup
	@echo "demo: $(if $(filter build,$(demo_in)),runs build/bin/muster,builds the command first: three minutes on two cores). Training takes a minute and a half."
	$(if $(filter build-demo,$(demo_in)),$(call configure,demo))
	$(if $(filter build-demo,$(demo_in)),$(call compile,demo,muster_cli))
	@scripts/demo $(demo_in)/bin/muster

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

# Kills, stops and delays ranks for MINUTES, or repeats the trial of one SEED; COMMS=local,mpi leaves out others.
chaos: setup
	$(call configure,release)
	$(call compile,release,chaos_rank)
	@scripts/install_torch
	@scripts/chaos $(MINUTES) $(SEED)

# Trains for HOURS, which may be 0.1, and fails if memory, threads or open files grow.
soak: setup
	$(call configure,release)
	$(call compile,release,soak)
	@scripts/install_torch
	@scripts/soak $(HOURS)

format: setup
	@scripts/format

check-format: setup
	@scripts/format --check

setup:
	@scripts/setup

clean:
	rm -rf build build-demo build-asan build-tsan build-fuzz
