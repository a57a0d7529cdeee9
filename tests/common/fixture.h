/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture.h - small checkpoints in a temporary directory, packed, for tests. A failure ends the test (cmocka).
 */
#ifndef EFS_FIXTURE_H
#define EFS_FIXTURE_H

#include "expertfs-private.h"
#include "expertfs-pack.h"
#include "expertfs-stats.h"

struct efs_mixture;
struct efs_team;

struct fixture_tensor {
    const char *name;
    const char *dtype; /* name in the safetensors format */
    int dims;
    uint64_t shape[4];
    uint64_t bytes;
};

struct fixture {
    char directory[256]; /* contains src/ and model.efs; fixture_end() removes it */
    char source[300], store[300];
};

void fixture_begin(struct fixture *fixture);
void fixture_end(struct fixture *fixture);
/* A cmocka teardown: fixture_end() of the fixture in *state. */
int fixture_teardown(void **state);
/* Write a file below src/ and create the missing directories of path. */
void fixture_file(const struct fixture *fixture, const char *path, const void *data, size_t bytes);
/* The same below another directory. */
void fixture_file_below(const char *directory, const char *path, const void *data, size_t bytes);
/* Write src/path in the safetensors format: the tensors in order, weights drawn from seed, with the exponents of
 * trained weights. */
void fixture_safetensors(const struct fixture *fixture, const char *path, const struct fixture_tensor *tensors,
                         unsigned count, unsigned seed);
/* layers x experts of three BF16 tensors each: gate and up of rows x columns, down of columns x rows. In addition a
 * dense tensor, norms of odd sizes and config.json. */
void fixture_moe(const struct fixture *fixture, unsigned layers, unsigned experts, unsigned rows, unsigned columns);
/* A small checkpoint with experts split over two files, and files of other kinds and sizes. */
void fixture_spread(const struct fixture *fixture);
void fixture_pack(const struct fixture *fixture, const struct efs_pack_options *options);
/* fixture_begin(), fixture_moe() and fixture_pack() with default options. */
void fixture_store(struct fixture *fixture, unsigned layers, unsigned experts, unsigned rows, unsigned columns);
/* Open the packed store. The caller closes it with efs_close(). */
struct efs *fixture_open(const struct fixture *fixture, struct efs_options options);
struct efs_expert_info fixture_expert_info(struct efs *fs, uint32_t expert);
struct efs_file_info fixture_file_info(struct efs *fs, uint32_t file);
uint32_t fixture_file_named(struct efs *fs, const char *path);
/* Wait until no request is in flight; returns the counters. */
struct efs_stats fixture_drain(struct efs *fs);
extern _Thread_local int
    fixture_class; /* class that the thread has requested, as SCHED_IDLE; it keeps the one of the test */
/* Memory in use by a store, in bytes: fixed part and both pools. */
uint64_t fixture_used_bytes(const struct efs_stats *stats);
/* After fixture_drain(): fail unless the memory in use is at most the budget. */
void fixture_within_budget(struct efs *fs);
/* Submit a request for experts. */
struct efs_client_request *fixture_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                                          enum efs_form form);
/* Lease an expert and release it. */
void fixture_lease_once(struct efs *fs, uint32_t file);
/* Request a prefetch of experts of a layer, as a line written to .expertfs/want does. */
errint_t fixture_prefetch(struct efs *fs, unsigned layer, const struct efs_need *needs, unsigned count,
                          struct efs_error *err);
/* efs_client_ffn() through a temporary client. The mixture's experts are numbers in the store, all of the same layer.
 */
errint_t fixture_ffn(struct efs *fs, struct efs_team *team, const struct efs_mixture *mixture, struct efs_error *err);
/* efs_set(), then wait for the next plan. */
void fixture_set_and_plan(struct efs *fs, const char *name, const char *value);
/* Read all files of the checkpoint through fs and compare them with those below src/. Returns the number of files. */
unsigned fixture_check_files(const struct fixture *fixture, struct efs *fs);
/* The contents of a file; the caller frees them with free(). */
unsigned char *fixture_read(const char *path, size_t *bytes);
/* The contents of src/model.safetensors; the caller frees them with free(). */
unsigned char *fixture_weights(const struct fixture *fixture, size_t *bytes);
/* An expert's file as fs serves it, and its number. The caller frees the result with free(). */
unsigned char *fixture_expert(struct efs *fs, uint32_t expert, uint32_t *file, size_t *bytes);
/* Flip a bit of the byte at offset. */
void fixture_damage(const char *path, uint64_t offset);
/* Number of open descriptors of this process, including the one that counts them. */
unsigned fixture_open_fds(void);
/* Number of entries of a directory, including "." and "..". */
unsigned fixture_entry_count(const char *directory);
uint64_t fixture_random(uint64_t *state);
/* Random bytes; the caller frees them with free(). */
unsigned char *fixture_noise(size_t bytes);

#endif
