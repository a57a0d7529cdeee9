/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_files.h - for tests: a scratch directory, and valid or invalid safetensors and GGUF files written byte by
 * byte.
 *
 * Every function here fails the running cmocka test on a system error.
 */
#ifndef SOURCE_FILES_H
#define SOURCE_FILES_H

#include "catalog.h"

#include <stddef.h>
#include <stdint.h>

/* A growing buffer. Initialise it to zero; the owner frees data with free(). */
struct sf_bytes {
    uint8_t *data;
    size_t count, capacity;
};
void sf_put(struct sf_bytes *bytes, const void *data, size_t count);
void sf_zero(struct sf_bytes *bytes, size_t count);
void sf_number(struct sf_bytes *bytes, uint64_t value, unsigned count); /* little-endian, count bytes */
void sf_string(struct sf_bytes *bytes, const char *text);               /* as GGUF: u64 length, text */
void sf_align(struct sf_bytes *bytes, size_t alignment);

/* Create a temporary directory. sf_rmdir() removes it with its contents and frees the name. */
char *sf_mkdir(void);
void sf_rmdir(char *directory);
/* Write directory/name and create the missing directories of name. */
void sf_write(const char *directory, const char *name, const void *data, size_t count);

/* Append a safetensors file: header_bytes as length, the header unchanged, data_bytes bytes of data. */
void sf_safetensors(struct sf_bytes *out, const char *header, size_t header_bytes, size_t data_bytes);

/* Append the start of a GGUF file: magic, version, counts. */
void sf_gguf_header(struct sf_bytes *out, uint32_t version, uint64_t tensors, uint64_t metadata);
/* Append one tensor's description; shape has the fastest dimension first, as in GGUF. */
void sf_gguf_tensor(struct sf_bytes *out, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                    uint64_t offset);

/* Read the directory; expect success and the invariants of a catalogue: sorted, inside the files, experts in order. */
void sf_accept(const char *directory, struct efs_catalog *catalog);
/* Read the directory; expect a file without tensors, in this state, with name, "offset" and reason in its note. */
void sf_unread(const char *directory, const char *name, enum efs_source_state state, const char *reason);
/* sf_accept() and sf_unread() of a temporary directory with this file only. The file's bytes are freed. */
void sf_read(const char *name, struct sf_bytes *file, struct efs_catalog *catalog);
void sf_refuse(const char *name, struct sf_bytes *file, enum efs_source_state state, const char *reason);
/* The tensor of this name; fails the test if the catalogue has none. */
const struct efs_source_tensor *sf_tensor(const struct efs_catalog *catalog, const char *name);

#endif
