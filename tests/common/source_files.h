/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_files.h - for tests: a scratch directory, and safetensors and GGUF files made byte by byte, right or wrong.
 *
 * Everything here fails the running cmocka test when the system refuses.
 */
#ifndef SOURCE_FILES_H
#define SOURCE_FILES_H

#include "catalog.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that grow. Zero it first; data is freed with free(). */
struct sf_bytes {
    uint8_t *data;
    size_t count, capacity;
};
void sf_put(struct sf_bytes *bytes, const void *data, size_t count);
void sf_zero(struct sf_bytes *bytes, size_t count);
void sf_number(struct sf_bytes *bytes, uint64_t value, unsigned count); /* little-endian, count bytes */
void sf_string(struct sf_bytes *bytes, const char *text);               /* as GGUF: u64 length, text */
void sf_align(struct sf_bytes *bytes, size_t alignment);

/* A new empty directory; sf_rmdir() removes it with all that is in it and frees the name. */
char *sf_mkdir(void);
void sf_rmdir(char *directory);
/* Write directory/name; missing directories of name are made. */
void sf_write(const char *directory, const char *name, const void *data, size_t count);

/* A safetensors file: length, header as it is, data_bytes bytes of data. */
void sf_safetensors(struct sf_bytes *out, const char *header, size_t header_bytes, size_t data_bytes);

/* The start of a GGUF file: magic, version, counts. */
void sf_gguf_header(struct sf_bytes *out, uint32_t version, uint64_t tensors, uint64_t metadata);
/* One tensor's description; shape is fastest first, as GGUF has it. */
void sf_gguf_tensor(struct sf_bytes *out, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                    uint64_t offset);

/* Read the directory; expect success, and catalogue invariants: sorted, inside the files, experts in order. */
void sf_accept(const char *directory, struct efs_catalog *catalog);
/* Read the directory; expect that the file has no tensors, and a note with its name, "offset" and reason. */
void sf_unread(const char *directory, const char *name, enum efs_source_state state, const char *reason);
/* The same of a directory that holds this file alone, whose bytes are freed. */
void sf_read(const char *name, struct sf_bytes *file, struct efs_catalog *catalog);
void sf_refuse(const char *name, struct sf_bytes *file, enum efs_source_state state, const char *reason);
/* The tensor of this name; fails the test when there is none. */
const struct efs_source_tensor *sf_tensor(const struct efs_catalog *catalog, const char *name);

#endif
