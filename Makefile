# A short front for Meson. `make help` lists the targets.
BUILD ?= build
MESON  = meson setup --wipe
TESTS ?=

.PHONY: all setup run test bench asan tsan lint install clean gpu-check fuzz wheel dist python-check help

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD) --quiet

$(BUILD)/build.ninja:
	@tools/setup
	@meson setup $(BUILD) --buildtype=release >/dev/null || { meson setup $(BUILD) --buildtype=release; exit 1; }

setup:
	@tools/setup

run: setup all
	@tools/run-scenes $(BUILD)/memfit

test: setup all
	@meson test -C $(BUILD) --print-errorlogs --suite quick $(TESTS)

bench: setup all
	@bench/run $(BUILD)

asan: setup
	@tools/sanitize address,undefined build-asan $(TESTS)

tsan: setup
	@tools/sanitize thread build-tsan $(TESTS)

fuzz: setup
	@tests/fuzz/run

lint: setup all
	@tools/lint

gpu-check: setup all
	@tools/gpu-check $(BUILD) $(PARTS)

wheel: setup
	@tools/wheel dist
	@tools/try-wheel dist

dist: wheel
	@tools/dist dist

python-check: all
	@tools/python-check $(BUILD)

install: all
	@meson install -C $(BUILD)

clean:
	@rm -rf build build-asan build-tsan build-fuzz dist

help:
	@echo "make            build (build/memfit, build/libmemfit.so)"
	@echo "make run        set up, build, show the main job"
	@echo "make test       set up, build, run every test"
	@echo "make bench      print the benchmark tables"
	@echo "make asan tsan  the test suites under sanitizers"
	@echo "make lint       formatting, layer rule, ABI list, static checks"
	@echo "make fuzz       a short run of every fuzz target"
	@echo "make gpu-check  everything that needs an NVIDIA GPU (skips without one); goes on where it stopped; PARTS=\"kinds limits\""
	@echo "make wheel      the Python wheels and the sdist, checked, in dist/;  make dist  the same with checksums"
	@echo "make python-check  the Python package against Keras and PyTorch, typed checks (skips what is not there)"
	@echo "make install    install below the Meson prefix;  make clean"
