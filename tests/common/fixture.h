/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture.h - small checkpoints in a directory of their own, packed, for tests. Failures end the test (cmocka).
 */
#ifndef EFS_FIXTURE_H
#define EFS_FIXTURE_H

#include "expertfs-private.h"

struct efs_mixture;
struct efs_team;

struct fixture_tensor {
    const char *name;
    const char *dtype; /* as safetensors names it */
    int dims;
    uint64_t shape[4];
    uint64_t bytes;
};

struct fixture {
    char directory[256]; /* holds src/ and model.efs; removed by fixture_end() */
    char source[300], store[300];
};

void fixture_begin(struct fixture *fixture);
void fixture_end(struct fixture *fixture);
/* The same of the fixture that a test's setup has put in *state. */
int fixture_teardown(void **state);
/* A file below src/ (directories are made). */
void fixture_file(const struct fixture *fixture, const char *path, const void *data, size_t bytes);
/* The same below another directory. */
void fixture_file_below(const char *directory, const char *path, const void *data, size_t bytes);
/* src/path as safetensors: the tensors in order, with weights from seed (exponents as trained weights have them). */
void fixture_safetensors(const struct fixture *fixture, const char *path, const struct fixture_tensor *tensors,
                         unsigned count, unsigned seed);
/* layers x experts of three BF16 tensors each, gate and up of rows x columns, down of columns x rows; a dense tensor,
 * norms of odd sizes, config.json. */
void fixture_moe(const struct fixture *fixture, unsigned layers, unsigned experts, unsigned rows, unsigned columns);
/* A small checkpoint whose experts begin in one file and end in the next, with files of all sizes. */
void fixture_spread(const struct fixture *fixture);
void fixture_pack(const struct fixture *fixture, const struct efs_pack_options *options);
/* These three at once: a begun fixture with a packed store of such experts. */
void fixture_store(struct fixture *fixture, unsigned layers, unsigned experts, unsigned rows, unsigned columns);
/* The packed store, open; efs_close() it. */
struct efs *fixture_open(const struct fixture *fixture, struct efs_options options);
struct efs_expert_info fixture_expert_info(struct efs *fs, uint32_t expert);
struct efs_file_info fixture_file_info(struct efs *fs, uint32_t file);
uint32_t fixture_file_named(struct efs *fs, const char *path);
/* Counters once nothing is under way any more. */
struct efs_stats fixture_quiet(struct efs *fs);
/* All that a store holds. */
uint64_t fixture_held_bytes(const struct efs_stats *stats);
/* Then it holds no more than its budget. */
void fixture_within_budget(struct efs *fs);
/* A request for experts, which begins. */
struct efs_request *fixture_submit(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_form form);
/* An expert is leased and given back. */
void fixture_lease_once(struct efs *fs, uint32_t file);
/* Experts of a layer are brought, as by a line of .expertfs/want. */
errint_t fixture_bring(struct efs *fs, unsigned layer, const struct efs_need *needs, unsigned count,
                       struct efs_error *err);
/* efs_client_ffn() by a client of its own; the mixture's experts are numbers in the store, all of the first one's
 * layer. */
errint_t fixture_ffn(struct efs *fs, struct efs_team *team, const struct efs_mixture *mixture, struct efs_error *err);
/* Tune it as efs_set() does, and wait for the plan that follows. */
void fixture_set_and_plan(struct efs *fs, const char *name, const char *value);
/* All files of the checkpoint, read through fs, are those below src/. Returns how many there are. */
unsigned fixture_check_files(const struct fixture *fixture, struct efs *fs);
/* The whole of a file; free() it. */
unsigned char *fixture_read(const char *path, size_t *bytes);
/* The same of src/model.safetensors. */
unsigned char *fixture_weights(const struct fixture *fixture, size_t *bytes);
/* An expert's file as fs serves it, and its number; free() it. */
unsigned char *fixture_expert(struct efs *fs, uint32_t expert, uint32_t *file, size_t *bytes);
/* A byte of the file is changed. */
void fixture_damage(const char *path, uint64_t offset);
/* How many descriptors this process has open. */
unsigned fixture_open_fds(void);
/* How many names a directory has, "." and ".." among them. */
unsigned fixture_names(const char *directory);
uint64_t fixture_random(uint64_t *state);

#endif
