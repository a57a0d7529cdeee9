# SPDX-License-Identifier: Apache-2.0
# expertfs: `make` builds into build/, `make demo` runs a demonstration, `make test` the tests; `make help` lists all.
#
# Each folder is a room; its sources are found by wildcards:
#   kernels/*.c sched/*/*.c engine/*/*.c -> libraries; expertfs/*.c expertfs/*/*.c -> build/expertfs
#   tools/NAME/*.c tools/NAME/*/*.c -> build/NAME
#   tests/ROOM/test_*.c -> one cmocka program each; *_avx2.c, *_avx512.c and *_neon.c are compiled with the CPU's flags
# V=1 prints commands. NDEBUG=1 disables assertions, for installing; SAN=address,undefined or SAN=thread enables
# sanitizers; both build into a separate folder. WERROR=1 makes warnings errors, as in CI.
MAKEFLAGS += --no-builtin-rules
VERSION := 0.1.0
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
PREFIX ?= /usr/local
DESTDIR ?=
SAN ?=
comma := ,
NDEBUG ?=
BUILD ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(NDEBUG),-ndebug)
ARCH := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)
Q := $(if $(V),,@)

# libcurl and gnutls: headers alone; the libraries are loaded at run time (engine/remote/curl.c, engine/peer/tls.c)
PKGS := fuse3 liburing libzstd liblz4 libxxhash jansson numa libcurl gnutls
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
ENGINE_LIBS := $(shell pkg-config --libs liburing libzstd liblz4 libxxhash jansson numa 2>/dev/null) -lpthread -lm
FUSE_LIBS := $(shell pkg-config --libs fuse3 2>/dev/null)

MISSING := $(shell for p in $(PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done)
ifneq ($(MISSING),)
ifneq ($(filter-out help gpu demo test bench bench-compute bench-replay bench-papers bench-llama bench-gpu format tidy clean uninstall fuzz deb,$(or $(MAKECMDGOALS),all)),)
$(error missing: $(MISSING). On Debian `tools/setup build` installs what is needed)
endif
endif

WARN := -Wall -Wextra -Wconversion -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
        -Wwrite-strings -Wundef $(if $(WERROR),-Werror)
OPT ?= -O2
BASE_CFLAGS := -std=gnu11 $(OPT) $(if $(SAN),-g1,-g) -fPIC -fvisibility=hidden -fno-omit-frame-pointer $(WARN) \
        $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all) $(if $(NDEBUG),-DNDEBUG) -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
        -DEFS_VERSION_STRING='"$(VERSION)"' $(CPPFLAGS) $(CFLAGS)
BASE_LDFLAGS := $(if $(SAN),-fsanitize=$(SAN)) $(LDFLAGS)

# Include paths of each room (ARCHITECTURE.md, Rooms). tests/house checks includes and symbols, too.
INC_kernels := -Ikernels
SCHED_ROOMS := $(patsubst %/,%,$(sort $(dir $(wildcard sched/*/*.c))))
INC_sched := $(SCHED_ROOMS:%=-I%)
# The engine has rooms. Code outside of it includes only engine/*.h: the installed headers and expertfs-private.h.
ENGINE_ROOMS := $(patsubst %/,%,$(sort $(dir $(wildcard engine/*/*.c))))
INC_engine := -Iengine $(ENGINE_ROOMS:%=-I%) -Ikernels $(INC_sched) $(PKG_CFLAGS)
EXPERTFS_ROOMS := $(patsubst %/,%,$(sort $(dir $(wildcard expertfs/*/*.c))))
INC_expertfs := -Iexpertfs $(EXPERTFS_ROOMS:%=-I%) -Iengine $(PKG_CFLAGS)
INC_tools := -Iengine $(INC_sched) -Itools/common $(PKG_CFLAGS)
INC_tests := -Iengine $(ENGINE_ROOMS:%=-I%) -Ikernels $(INC_sched) -Itests/common -Itools/moe-replay/base -Itools/common $(PKG_CFLAGS)
# Files that read foreign checkpoints include the engine's readers.
$(BUILD)/obj/tools/expertctl/info_checkpoint.o $(BUILD)/obj/tools/common/sources.o: INC_tools += -Iengine/source -Iengine/store
# moe-replay has rooms.
REPLAY_ROOMS := $(patsubst %/,%,$(sort $(dir $(wildcard tools/moe-replay/*/*.c))))
$(BUILD)/obj/tools/moe-replay/%.o: INC_tools += $(REPLAY_ROOMS:%=-I%)
$(BUILD)/obj/tools/moe-replay/live/raw.o: INC_tools += -Iengine/source -Iengine/store
$(BUILD)/obj/tools/moe-replay/base/route.o: INC_tools += -Iengine/base
# bench_kernels calls the kernels directly, and those for graphics processors through the driver.
$(BUILD)/obj/tools/bench_kernels/%.o: INC_tools += -Ikernels -Iengine/gpu
# Tools that use OpenMP
OPENMP := bench_kernels moe-replay runmoe
$(OPENMP:%=$(BUILD)/obj/tools/%/%.o): FLAGS_tools += -fopenmp

ifeq ($(ARCH),x86_64)
KERNEL_SKIP := %_neon.c
FLAGS_avx2 := -mavx2 -mfma -mf16c -mbmi -mbmi2 -mpopcnt
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vbmi2 -mavx2 -mfma -mbmi -mbmi2 -mpopcnt
FLAGS_avx512bf16 := $(FLAGS_avx512) -mavx512bf16
else
KERNEL_SKIP := %_avx2.c %_avx512.c %_avx512bf16.c $(if $(filter aarch64,$(ARCH)),,%_neon.c)
endif
# The largest frame of a function. Threads that call the library may have small stacks: 128 KiB with musl. Sanitizers
# enlarge frames.
frame = $(if $(SAN),,-Wframe-larger-than=$(1))
# Without -ffp-contract=off the compiler fuses multiply-adds on some CPUs only, and products differ between CPUs.
# With ASan and UBSan, compiling with -O3 takes minutes. With TSan the kernels are not instrumented; their callers
# report the accesses (engine/base/tsan.h).
FLAGS_kernels := $(if $(findstring address,$(SAN)),-O1,-O3) -ffp-contract=off $(if $(findstring thread,$(SAN)),-fno-sanitize=thread) $(call frame,16384)
FLAGS_sched := $(call frame,16384)
FLAGS_engine := -ffp-contract=off $(call frame,16384)
FLAGS_expertfs := $(call frame,16384)
FLAGS_tools := -ffp-contract=off $(call frame,16384)
# $(call isa_flags,path): the instruction set flags by the file's name
isa_flags = $(foreach i,avx2 avx512 avx512bf16 neon,$(if $(findstring _$(i).c,$(1)),$(FLAGS_$(i))))

SRC_kernels := $(filter-out $(KERNEL_SKIP),$(wildcard kernels/*.c))
SRC_sched := $(wildcard sched/*/*.c)
SRC_engine := $(wildcard engine/*/*.c)
SRC_expertfs := $(wildcard expertfs/*.c expertfs/*/*.c)
SRC_common := $(wildcard tools/common/*.c)
TOOLS := $(filter-out common ggml,$(patsubst tools/%/,%,$(sort $(dir $(wildcard tools/*/*.c)))))
SRC_tests_common := $(wildcard tests/common/*.c)
TESTS := $(patsubst tests/%.c,%,$(wildcard tests/*/test_*.c)) $(patsubst tests/fuzz/%.c,fuzz/test_%,$(wildcard tests/fuzz/fuzz_*.c))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
# 0 until release 1.0.0: the ABI may change. See engine/libexpertfs.map.
SONAME := libexpertfs.so.0
SYMBOLS := engine/libexpertfs.map
LIBS := $(BUILD)/libexpertfs.a $(BUILD)/$(SONAME)
# The ggml backend needs ggml's headers, which tools/setup-python downloads; without them it is not built.
GGML_INC := build/venv/include/ggml
GGML_PLUGIN := $(if $(wildcard $(GGML_INC)/ggml-backend-impl.h),$(BUILD)/libggml-expertfs.so)
PROGRAMS := $(if $(SRC_expertfs),$(BUILD)/expertfs) $(TOOLS:%=$(BUILD)/%) $(BUILD)/mkmodel
LIB_OBJS := $(call obj,$(SRC_engine) $(SRC_sched) $(SRC_kernels))

PROGRAMS_INSTALLED := expertfs mkexpertfs expertctl expertpeer moe-replay

.PHONY: all installed
all: $(LIBS) $(PROGRAMS) $(GGML_PLUGIN)
# The files that `make install` copies, for building packages.
installed: $(LIBS) $(PROGRAMS_INSTALLED:%=$(BUILD)/%) $(GGML_PLUGIN)

define room
$(BUILD)/obj/$(1)/%.o: $(1)/%.c Makefile
	@mkdir -p $$(@D)
	$$(if $$(V),,@echo "  CC      $$<")
	$$(Q)$$(CC) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$(call isa_flags,$$<) $$(INC_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach r,kernels sched engine expertfs tools tests,$(eval $(call room,$(r))))

# The library contains the GPU kernels if nvcc is installed; GPU=0 omits them.
GPU ?= 1
$(BUILD)/obj/engine/gpu/image.o: engine/gpu/image.c $(wildcard kernels/cuda/*) kernels/cascade_chunk.h kernels/ops.h kernels/kernels.h tools/gpu Makefile
	@mkdir -p $(@D) $(BUILD)/gpu
	@rm -f $(BUILD)/gpu/kernels.fatbin
	@if [ "$(GPU)" = 0 ]; then echo "gpu: not built: GPU=0"; \
	 elif tools/gpu $(BUILD)/gpu >$(BUILD)/gpu/log 2>&1; then tail -n 1 $(BUILD)/gpu/log; \
	 else echo "gpu: not built: nvcc failed, \`make gpu\` shows why"; rm -f $(BUILD)/gpu/kernels.fatbin; fi
	$(Q)$(CC) $(BASE_CFLAGS) $(INC_engine) $$([ ! -s $(BUILD)/gpu/kernels.fatbin ] || echo '-DEFS_GPU_IMAGE="$(BUILD)/gpu/kernels.fatbin"') -c -o $@ $<

$(BUILD)/libexpertfs.a: $(LIB_OBJS)
	$(if $(V),,@echo "  AR      $@")
	$(Q)rm -f $@ && ar rcs $@ $^

# The shared library, for foreign programs and ctypes: exports only EFS_API symbols, with the versions of SYMBOLS, and
# contains only the objects of the archive that the engine needs. The programs built here link the archive.
$(BUILD)/$(SONAME): $(call obj,$(SRC_engine)) $(BUILD)/libexpertfs.a $(SYMBOLS)
	$(if $(V),,@echo "  LINK    $@")
	$(Q)$(CC) $(BASE_CFLAGS) $(BASE_LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=$(SYMBOLS) $(if $(SAN),,-Wl,-z,defs) \
	  -o $@ $(filter %.o %.a,$^) $(ENGINE_LIBS)

link = $(Q)$(CC) $(BASE_CFLAGS) $(BASE_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)

$(BUILD)/expertfs: $(call obj,$(SRC_expertfs)) $(BUILD)/libexpertfs.a
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(FUSE_LIBS) $(ENGINE_LIBS)

define tool
$(BUILD)/$(1): $(call obj,$(wildcard tools/$(1)/*.c tools/$(1)/*/*.c) $(SRC_common)) $(BUILD)/libexpertfs.a
	$$(if $$(V),,@echo "  LINK    $$@")
	$$(link) $$(if $$(filter bench_fuse,$(1)),$$(FUSE_LIBS)) $$(if $$(filter $(OPENMP),$(1)),-fopenmp) $$(ENGINE_LIBS)
endef
$(foreach t,$(TOOLS),$(eval $(call tool,$(t))))

$(BUILD)/mkmodel: tools/mkmodel/mkmodel.py
	@mkdir -p $(@D)
	$(Q)ln -sfr $< $@

# The ggml backend exports two symbols, for loading and preloading, and contains the library. It uses OpenMP, like ggml.
$(BUILD)/obj/tools/ggml/%.o: INC_tools += -isystem $(GGML_INC)
$(BUILD)/obj/tools/ggml/%.o: FLAGS_tools += -fopenmp
$(BUILD)/libggml-expertfs.so: $(call obj,$(wildcard tools/ggml/*.c)) $(BUILD)/libexpertfs.a
	$(if $(V),,@echo "  LINK    $@")
	$(link) -shared -fopenmp -Wl,--exclude-libs,ALL $(if $(SAN),,-Wl,-z,defs) $(ENGINE_LIBS)

TEST_PROGRAMS := $(TESTS:%=$(BUILD)/tests/%) $(BUILD)/tests/engine/mkstore
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(call obj,$(SRC_tests_common)) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(shell pkg-config --libs cmocka) $(ENGINE_LIBS)
# Tests that read routing traces
$(BUILD)/tests/engine/test_record $(BUILD)/tests/tools/test_route $(BUILD)/tests/fuzz/test_fuzz_texts $(BUILD)/fuzz/fuzz_texts: $(BUILD)/obj/tools/moe-replay/base/route.o
$(BUILD)/tests/tools/test_progress: $(call obj,$(SRC_common))
# Pauses between the steps of a demotion.
$(BUILD)/tests/engine/test_demotion: BASE_LDFLAGS += -Wl,--wrap=efs_lock,--wrap=efs_unlock,--wrap=efs_shard_encode,--wrap=efs_extent_alloc,--wrap=efs_cores_pause,--wrap=efs_idle_push,--wrap=efs_workers_stop
# Threads that stop where they would wake the I/O thread; the order of the starts of threads.
$(BUILD)/tests/engine/test_uncached: BASE_LDFLAGS += -Wl,--wrap=efs_io_submit,--wrap=efs_workers_stop,--wrap=write
$(BUILD)/tests/engine/test_backing_rados: private BASE_LDFLAGS += -Wl,--wrap=pthread_mutex_lock,--wrap=write
$(BUILD)/tests/engine/test_backing_rados: | $(BUILD)/tests/e2e/libfake-rados.so
$(BUILD)/tests/engine/test_local_served: BASE_LDFLAGS += -Wl,--wrap=efs_local_start,--wrap=efs_plan_thread_start
# Counts calls.
$(BUILD)/tests/engine/test_request_cost: BASE_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,pthread_mutex_lock malloc calloc realloc efs_workers_push)
# Run workers and the I/O thread on their own thread, in any order (one_thread.h).
ONE_THREAD := $(BUILD)/tests/engine/test_orders $(BUILD)/tests/model/test_explore
$(ONE_THREAD): $(BUILD)/obj/tests/engine/one_thread.o
$(ONE_THREAD): BASE_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,efs_workers_start efs_workers_stop \
  efs_workers_push efs_io_queue_start efs_io_queue_cancel efs_io_queue_stop efs_io_queue_free efs_io_submit \
  efs_io_apply_changes efs_io_wake efs_idle_start efs_idle_stop efs_idle_free efs_idle_push efs_plan_thread_start efs_plan_thread_stop efs_plan_thread_free efs_plan_thread_record \
  efs_plan_thread_replan efs_plan_thread_kick efs_extent_decode efs_extent_check efs_shard_decode_from efs_memfile_reserve \
  efs_sys_populate efs_memory_left_read efs_thread_number)
# The explorer saves and restores all memory of the engine.
$(BUILD)/obj/tests/model/%.o: INC_tests += -Itests/engine
$(BUILD)/tests/model/test_explore: $(call obj,$(filter-out tests/model/test_%,$(wildcard tests/model/*.c)))
$(BUILD)/tests/model/test_explore: BASE_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc free memcpy \
  efs_memfile_new efs_memfile_free efs_memfile_resize efs_memfile_export efs_memfile_make_window efs_memfile_is_mapped_elsewhere efs_view_expert_header \
  efs_sys_mmap efs_sys_close efs_sys_madvise efs_sys_mprotect efs_sys_mbind efs_sys_huge_bytes efs_demotion_build efs_items_reserve efs_changed efs_account_take_changed efs_arena_free efs_arena_retire clock_gettime pthread_mutex_lock pthread_mutex_unlock)
# Tests of the daemon link its objects. expertfs-faults is the daemon with wrapped calls that can be late or fail.
# The daemon's include paths precede the engine's: headers with the same name are the daemon's.
$(BUILD)/obj/tests/expertfs/%.o: INC_tests := $(INC_expertfs) $(INC_tests)
EXPERTFS_PARTS := $(call obj,$(filter-out expertfs/main.c,$(SRC_expertfs)))
$(BUILD)/tests/expertfs/%: $(BUILD)/obj/tests/expertfs/%.o $(EXPERTFS_PARTS) $(call obj,$(SRC_tests_common)) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(shell pkg-config --libs cmocka) $(FUSE_LIBS) $(ENGINE_LIBS)
$(BUILD)/tests/expertfs/expertfs-faults: BASE_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,efs_open efs_close efs_read efs_lease efs_lease_release \
  fuse_reply_open fuse_reply_buf ioctl)
$(BUILD)/tests/expertfs/expertfs-faults: $(call obj,$(SRC_expertfs) tests/expertfs/engine_faults.c) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(FUSE_LIBS) $(ENGINE_LIBS)
TEST_PROGRAMS += $(BUILD)/tests/expertfs/expertfs-faults
# A fake libcuda.so.1, which runs the CPU twin of the kernels; old: without the calls that older drivers lack.
FAKE_CUDA := $(BUILD)/tests/engine/libcuda-fake.so $(BUILD)/tests/engine/libcuda-fake-old.so
TEST_PROGRAMS += $(FAKE_CUDA)
$(filter $(BUILD)/tests/engine/test_gpu%,$(TEST_PROGRAMS)): $(BUILD)/obj/tests/engine/gpu_fixture.o
$(BUILD)/tests/engine/libcuda-fake.so: $(BUILD)/obj/tests/engine/fake_cuda.o
$(BUILD)/tests/engine/libcuda-fake-old.so: $(BUILD)/obj/tests/engine/fake_cuda_old.o
$(FAKE_CUDA):
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) -shared -lpthread -lm
# Preloaded into a daemon by tests.
TEST_PROGRAMS += $(BUILD)/tests/e2e/libsized-tmpfs.so
$(BUILD)/tests/e2e/libsized-tmpfs.so: $(BUILD)/obj/tests/e2e/sized_tmpfs.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) -shared
# A librados on a folder, for EXPERTFS_RADOS.
TEST_PROGRAMS += $(BUILD)/tests/e2e/libfake-rados.so
$(BUILD)/tests/e2e/libfake-rados.so: $(BUILD)/obj/tests/e2e/fake_rados.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) -shared -lpthread
# A FUSE filesystem with quirks of other filesystems, to place a store on.
# A device of ggml for tests of its backend, where the ggml of llama-cpp-python is.
GGML_LIB := $(dir $(firstword $(wildcard build/venv/lib/python3*/site-packages/llama_cpp/lib/libggml.so)))
TEST_PROGRAMS += $(if $(GGML_PLUGIN),$(if $(GGML_LIB),$(BUILD)/tests/e2e/libfake-device.so))
$(BUILD)/obj/tests/e2e/fake_device.o: INC_tests += -isystem $(GGML_INC)
$(BUILD)/tests/e2e/libfake-device.so: $(BUILD)/obj/tests/e2e/fake_device.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(Q)$(CC) $(BASE_CFLAGS) $(BASE_LDFLAGS) -shared -o $@ $< -L$(GGML_LIB) -lggml -lggml-base
TEST_PROGRAMS += $(BUILD)/tests/e2e/quirkfs
$(BUILD)/tests/e2e/quirkfs: $(BUILD)/obj/tests/e2e/quirkfs.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(FUSE_LIBS)
# tests/fault wraps the system calls of engine/base/sys.c that sys_fault.c names.
$(BUILD)/tests/fault/%: BASE_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,fsconfig $(shell grep -o 'efs_sys_[a-z_]*' tests/fault/sys_fault.c | sort -u))
$(BUILD)/tests/fault/%: $(BUILD)/obj/tests/fault/%.o $(BUILD)/obj/tests/fault/sys_fault.o $(call obj,$(SRC_tests_common)) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(shell pkg-config --libs cmocka) $(ENGINE_LIBS)
# mkexpertfs with the wrapped system calls, for tests that kill it.
TEST_PROGRAMS += $(BUILD)/tests/fault/mkexpertfs-signalled
$(BUILD)/tests/fault/mkexpertfs-signalled: $(call obj,$(wildcard tools/mkexpertfs/*.c) $(SRC_common) tests/fault/signalled.c tests/fault/sys_fault.c) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(ENGINE_LIBS)
# Fuzzers (clang): `make fuzz` runs each for FUZZ_SECONDS from its corpus in tests/fuzz, which the tests run, too. New
# inputs and crashes are written to the build folder.
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(EXPERTFS_PARTS) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D) $(BUILD)/corpus/$*
	$(if $(V),,@echo "  LINK    $@")
	$(link) -fsanitize=fuzzer $(FUSE_LIBS) $(ENGINE_LIBS)
# Headers with the same name as one of the engine are the daemon's.
$(BUILD)/obj/tests/fuzz/%.o: INC_tests := $(INC_expertfs) $(INC_tests)
# The fuzz targets as tests, for any compiler
$(BUILD)/tests/fuzz/test_%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/mutate.o $(EXPERTFS_PARTS) $(call obj,$(SRC_tests_common)) $(BUILD)/libexpertfs.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK    $@")
	$(link) $(shell pkg-config --libs cmocka) $(FUSE_LIBS) $(ENGINE_LIBS)
.PHONY: fuzz fuzzers
fuzzers: $(FUZZERS:%=$(BUILD)/fuzz/%)
fuzz:
	@$(MAKE) --no-print-directory CC=clang BUILD=$(BUILD)-fuzz SAN=address,undefined CFLAGS=-fsanitize=fuzzer-no-link fuzzers
	@cd $(BUILD)-fuzz && for f in $(FUZZERS); do \
	  fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 corpus/$$f $(CURDIR)/tests/fuzz/corpus/$$f || exit 1; done
.SECONDARY:

.PHONY: tests-build c-tests c-tests-long for-scripts clean
tests-build: all $(TEST_PROGRAMS)

# C tests of `make test`: all with ASan and UBSan; those with several threads with TSan; those of kernels, sched, model,
# power loss and fork() with threads also without sanitizers, as shipped. Builds with sanitizers do not include the tools.
SHIPPED := $(filter kernels/% sched/% model/% fault/test_power fault/test_reclaim engine/test_client_fork engine/test_gpu engine/test_orders,$(TESTS))
THREADED := $(addprefix engine/test_,write_behind backing backing_local backing_rados local local_served client demotion disk ffn ffn_calls gpu gpu_formats prefetcher export_client \
  export_client_coded uncached plan reclaim record sampling serve settled states streams tune_threads) \
  expertfs/test_export_faults expertfs/test_log fuzz/test_fuzz_export
# These take minutes with TSan, so the long tier runs them. `make test` runs a third of test_demotion.
THREADED_LONG := $(addprefix engine/test_,demotion gpu_run pack pack_changes product request request_waits)
UNKNOWN := $(filter-out $(TESTS),$(THREADED) $(THREADED_LONG))
$(if $(UNKNOWN),$(error no source of the tests $(UNKNOWN)))
# fault/test_reclaim forks hundreds of times, which takes minutes with ASan, so the long tier runs it.
TESTED := $(patsubst %,build-address-undefined/tests/%,$(filter-out fault/test_reclaim,$(TESTS))) $(THREADED:%=build-thread/tests/%) $(SHIPPED:%=build/tests/%)
c-tests: $(filter $(BUILD)/%,$(TESTED)) $(FAKE_CUDA)
TESTED_LONG := $(THREADED_LONG:%=build-thread/tests/%) build-address-undefined/tests/fault/test_reclaim
c-tests-long: $(filter $(BUILD)/%,$(TESTED_LONG)) $(FAKE_CUDA)
	@EXPERTFS_LONG=1 PROGRAMS="$(filter $(BUILD)/%,$(TESTED_LONG))" SCRIPTS=0 tests/run
# Programs that scripts use in addition to those of `all`
for-scripts: $(filter-out $(TESTS:%=$(BUILD)/tests/%),$(TEST_PROGRAMS)) $(BUILD)/tests/engine/test_sweep
clean:
	rm -rf build build-*

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---- commands --------------------------------------------------------------------------------------------------------
.PHONY: help gpu deb wheel demo test demo-remote test-long test-cluster soak check san bench bench-cluster bench-compute bench-replay bench-papers bench-llama bench-gpu format tidy install uninstall
help:
	@echo "make            build into build/ (needs the packages of tools/setup build)"
	@echo "make demo       install what is missing, build, make a checkpoint (or MODEL=DIR), pack, mount, read, verify"
	@echo "make demo-remote  a model in Ceph, which it starts here, that fits into no memory: two mounts, an OSD killed under readers"
	@echo "make test       install what is missing, build, run all tests; the C tests run under ASan and UBSan, and TSan"
	@echo "make check T=ROOM|PATTERN  build, then run the tests of a room (engine/cache) or those whose name holds PATTERN"
	@echo "make check CHANGED=1  the tests of the rooms in which files differ from main"
	@echo "make san        the C tests under ASan and UBSan, and TSan"
	@echo "make test-cluster  stores in a real Ceph (RADOS, S3) and on a real nginx, which it starts here: some five minutes"
	@echo "make test-long  the long tier: what is done of each part; PART=damage runs 15 minutes of one and keeps its place"
	@echo "make soak MINUTES=N  everything at once on a mount: readers of every kind, clients, tunings, kills (SEED=N)"
	@echo "make fuzz       fuzz what meets foreign bytes for FUZZ_SECONDS ($(FUZZ_SECONDS)) each (needs clang)"
	@echo "make bench      measure against the peers (fio, tmpfs, squashfs); needs some 12 GiB of disk"
	@echo "make bench-cluster  a model in Ceph and on nginx against their clients, rclone and downloads (root; 30 GB of disk)"
	@echo "make bench-compute  products of matrices in the coded form, against plain ones and llama.cpp (3 GiB of memory)"
	@echo "make bench-replay TRACES=DIR  real routing through a mount and its peers (cgroups, so root; 12 GiB of disk)"
	@echo "make bench-papers TRACES=DIR  the tables of the papers beside ours, most of them simulated (ten minutes; 2 GiB of disk)"
	@echo "make bench-llama  llama.cpp with the backend, under memory limits; goes on where it ended (cgroups, so root; 16 GB of disk)"
	@echo "make bench-gpu  experts to the memory of a graphics processor, coded over raw (2 GiB of disk)"
	@echo "make gpu        compile the kernels for graphics processors (nvcc; tools/setup gpu fetches it)"
	@echo "make install    programs, library, headers, man pages into PREFIX ($(PREFIX)), DESTDIR is honoured;"
	@echo "                NDEBUG=1 builds them without assertions"
	@echo "make deb        Debian packages into build/deb (V=1 shows how)"
	@echo "make wheel      the Python package with the library, for this processor, into build/wheel; its tests with torch run in"
	@echo "                make test after tools/setup-python torch (2 GB)"
	@echo "make format tidy clean"

wheel: $(BUILD)/$(SONAME)
	@tools/setup-python wheel
	@tools/wheel $(BUILD)/$(SONAME) build/wheel $(VERSION)

demo:
	@tools/setup build demo
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/demo $(if $(MODEL),"$(MODEL)")

demo-remote:
	@tools/setup build demo cluster
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/demo-remote

test:
	@tools/setup build test cross runtime
	@tools/setup-python basic runtimes
	@$(MAKE) --no-print-directory -j$$(nproc) WERROR=1 all for-scripts c-tests
	@$(MAKE) --no-print-directory -j$$(nproc) WERROR=1 SAN=address,undefined c-tests
	@$(MAKE) --no-print-directory -j$$(nproc) WERROR=1 SAN=thread c-tests
	@PROGRAMS="$(TESTED)" tests/run

# T: rooms or patterns; CHANGED=1: tests that depend on the changed files (tests/reach)
check: tests-build
	@tests/run $$(tests/reach $(if $(CHANGED),--changed,$(T)))

san:
	@$(MAKE) --no-print-directory -j$$(nproc) WERROR=1 SAN=address,undefined c-tests
	@$(MAKE) --no-print-directory -j$$(nproc) WERROR=1 SAN=thread c-tests
	@PROGRAMS="$(filter build-%,$(TESTED))" SCRIPTS=0 tests/run

# PART: scripts, damage, kills, power, soak, fuzz, model, neon, llama, asan or tsan; MINUTES: 15
test-long:
	@tests/long $(PART)

test-cluster:
	@tools/setup build test cluster
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) tests-build
	@tests/run e2e/test_ceph.py e2e/test_nginx.py e2e/test_rgw.py

soak: MINUTES ?= 10
soak: tests-build
	@EXPERTFS_SOAK_SECONDS=$$((60 * $(MINUTES))) TEST_TIMEOUT=$$((120 * $(MINUTES) + 900)) tests/run e2e/test_soak

bench:
	@tools/setup build test bench
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all $(BUILD)/tests/engine/mkstore
	@tools/bench/run

# BENCH_CLUSTER: rows and options of tools/bench/run cluster
bench-cluster:
	@tools/setup build test cluster
	@tools/setup-python basic runtimes
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run cluster $(BENCH_CLUSTER)

# BENCH_COMPUTE: options of tools/bench/run compute; BENCH_TPOT: of tools/bench/run tpot, which needs TRACES
bench-compute:
	@tools/setup build
	@tools/setup-python basic runtimes
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run compute $(BENCH_COMPUTE)
	@tools/bench/run tpot $(BENCH_TPOT)

# BENCH_REPLAY: options of tools/bench/run replay. TRACES: a folder of routing traces, *-eval.route* and *-history.route*
bench-replay:
	@tools/setup build bench
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run replay $(BENCH_REPLAY)

# BENCH_GPU: options of mkmodel for its model
bench-gpu:
	@tools/setup build
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run gpu $(BENCH_GPU)

# BENCH_PAPERS: options of tools/bench/run papers. TRACES: as for bench-replay
bench-papers:
	@tools/setup build
	@tools/setup-python basic
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run papers $(BENCH_PAPERS)

# BENCH_LLAMA: rows and options of tools/bench/run llama_table
bench-llama:
	@tools/setup build test runtime
	@tools/setup-python basic runtimes
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/bench/run llama_table --prepare $(BENCH_LLAMA)
	@tools/bench/run llama_table $(BENCH_LLAMA)

format:
	@tools/setup-python basic
	build/venv/bin/clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')

tidy:
	clang-tidy $$(git ls-files 'kernels/*.c' 'engine/*/*.c' 'expertfs/*.c' 'sched/*/*.c' | grep -v _neon) -- -std=gnu11 -D_GNU_SOURCE \
	  -DEFS_VERSION_STRING='""' -mavx2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vbmi2 -mavx512bf16 -mbmi2 -mpopcnt -mfma -mf16c \
	  $(INC_expertfs) $(INC_engine)

MAN := $(wildcard man/*.[1-8]) tools/mkmodel/mkmodel.1
HEADERS := $(filter-out %-private.h,$(wildcard engine/*.h))
LIBDIR ?= $(PREFIX)/lib
# ld.so searches the folders below these; with any other prefix expertfs.pc adds a run path to programs.
RUN_PATH := $(if $(filter /usr /usr/local,$(PREFIX)),,-Wl$(comma)-rpath$(comma)$${libdir})
UNITDIR ?= $(PREFIX)/lib/systemd/system
SBINDIR ?= $(PREFIX)/sbin
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
# On Debian PATH of users does not include /sbin.
LDCONFIG := PATH="$$PATH:/usr/sbin:/sbin" ldconfig
MKMODEL_DIR = $(PREFIX)/share/expertfs/mkmodel
# Quoted, because DESTDIR may contain blanks.
TO = "$(DESTDIR)$(1)/"
# Blanks would split the paths in this file, commas in sed and in linker options.
PLACES_CHECK = $(if $(word 2,$(PREFIX))$(word 2,$(LIBDIR))$(findstring $(comma),$(PREFIX)$(LIBDIR)),$(error PREFIX and LIBDIR may have neither blanks nor commas))
$(if $(filter install uninstall,$(MAKECMDGOALS)),$(PLACES_CHECK))
install: installed
	install -d $(foreach d,$(PREFIX)/bin $(MKMODEL_DIR) $(SBINDIR) $(SYSCONFDIR)/expertfs $(SYSCONFDIR)/logrotate.d $(LIBDIR)/pkgconfig $(PREFIX)/include $(UNITDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR),$(call TO,$(d)))
	install -m 755 $(PROGRAMS_INSTALLED:%=$(BUILD)/%) $(call TO,$(PREFIX)/bin)
	install -m 755 tools/mkmodel/mkmodel.py $(call TO,$(MKMODEL_DIR))
	install -m 644 tools/mkmodel/families.py $(call TO,$(MKMODEL_DIR))
	install -m 644 tools/packaging/grafana.json $(call TO,$(PREFIX)/share/expertfs)
	ln -sf ../share/expertfs/mkmodel/mkmodel.py $(call TO,$(PREFIX)/bin)mkmodel
	install -m 644 $(BUILD)/libexpertfs.a $(BUILD)/$(SONAME) $(GGML_PLUGIN) $(call TO,$(LIBDIR))
	ln -sf $(SONAME) $(call TO,$(LIBDIR))libexpertfs.so
	install -m 644 $(HEADERS) $(call TO,$(PREFIX)/include)
	printf 'prefix=%s\nlibdir=%s\nName: expertfs\nDescription: lossless mixture-of-experts stores\nVersion: %s\nLibs: -L$${libdir} $(RUN_PATH) -lexpertfs\nLibs.private: %s\nCflags: -I$${prefix}/include\n' \
	  '$(PREFIX)' '$(LIBDIR)' '$(VERSION)' '$(ENGINE_LIBS)' >$(call TO,$(LIBDIR)/pkgconfig)expertfs.pc
	for m in $(MAN); do install -D -m 644 $$m $(call TO,$(PREFIX)/share/man)man$${m##*.}/$${m##*/} || exit 1; done
	ln -sf $(PREFIX)/bin/expertfs $(call TO,$(SBINDIR))mount.expertfs
	sed 's,@BINDIR@,$(PREFIX)/bin,' tools/packaging/expertfs@.service.in >$(call TO,$(UNITDIR))expertfs@.service
	install -m 644 tools/packaging/example.conf $(call TO,$(SYSCONFDIR)/expertfs)
	install -m 644 tools/packaging/logrotate $(call TO,$(SYSCONFDIR)/logrotate.d)expertfs
	for p in $(PROGRAMS_INSTALLED); do \
	  install -m 644 tools/packaging/completions/bash $(call TO,$(BASHDIR))$$p && \
	  install -m 644 tools/packaging/completions/zsh $(call TO,$(ZSHDIR))_$$p && \
	  install -m 644 tools/packaging/completions/fish $(call TO,$(FISHDIR))$$p.fish || exit 1; done
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || $(LDCONFIG)
	@[ -n "$(DESTDIR)" ] || $(LDCONFIG) -p 2>/dev/null | grep -qF '$(LIBDIR)/$(SONAME)' || \
	  printf 'note: the library is in %s, where the loader does not look by itself.\n  Programs that are linked with `PKG_CONFIG_PATH=%s/pkgconfig pkg-config --libs expertfs` find it;\n  others need the whole path, or LD_LIBRARY_PATH=%s\n' '$(LIBDIR)' '$(LIBDIR)' '$(LIBDIR)'

	@[ -n "$(DESTDIR)" ] || [ '$(PREFIX)' = /usr ] || \
	  echo 'note: mount(8) searches /sbin: for `mount -t expertfs`, ln -s $(SBINDIR)/mount.expertfs /sbin/'

uninstall:
	for p in $(PROGRAMS_INSTALLED); do rm -f $(call TO,$(PREFIX)/bin)$$p $(call TO,$(BASHDIR))$$p $(call TO,$(ZSHDIR))_$$p $(call TO,$(FISHDIR))$$p.fish; done
	for f in libexpertfs.a libexpertfs.so $(SONAME) libggml-expertfs.so pkgconfig/expertfs.pc; do rm -f $(call TO,$(LIBDIR))$$f; done
	for h in $(notdir $(HEADERS)); do rm -f $(call TO,$(PREFIX)/include)$$h; done
	rm -rf $(call TO,$(MKMODEL_DIR))
	rm -f $(call TO,$(PREFIX)/share/expertfs)grafana.json
	rm -f $(call TO,$(PREFIX)/bin)mkmodel
	for m in $(MAN); do rm -f $(call TO,$(PREFIX)/share/man)man$${m##*.}/$${m##*/}; done
	rm -f $(call TO,$(UNITDIR))expertfs@.service $(call TO,$(SBINDIR))mount.expertfs $(call TO,$(SYSCONFDIR)/expertfs)example.conf $(call TO,$(SYSCONFDIR)/logrotate.d)expertfs
	@case '$(PREFIX)' in /usr|/usr/local) rmdir --ignore-fail-on-non-empty $(call TO,$(SYSCONFDIR)/expertfs) 2>/dev/null || : ;; *) cd $(call TO,$(PREFIX)) 2>/dev/null && rmdir -p --ignore-fail-on-non-empty $(patsubst $(PREFIX)/%,%,\
	  $(filter $(PREFIX)/%,$(PREFIX)/bin $(dir $(MKMODEL_DIR)) $(SBINDIR) $(SYSCONFDIR)/expertfs $(SYSCONFDIR)/logrotate.d $(PREFIX)/include $(LIBDIR)/pkgconfig $(UNITDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR) \
	  $(sort $(foreach m,$(MAN),$(PREFIX)/share/man/man$(lastword $(subst ., ,$(m))))))) 2>/dev/null || : ;; esac

# Compiles the GPU kernels into build/gpu. The tests run the same sources on the CPU: tests/kernels/gpu_twin.h.
gpu:
	@tools/gpu $(BUILD)/gpu

# Builds Debian packages in build/deb, from a copy of the sources with debian/ at its root, as dpkg requires.
deb:
	@tools/setup build deb
	@tools/setup-python ggml
	@tools/packaging/deb $(BUILD)/deb $(VERSION)
