/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - the latest requests.
 *
 * trace/ keeps the latest requests of a served store in a ring of fixed size, and returns them as a routing trace.
 * cache/, fetch/ and serve/ call it. It never writes a file.
 */
#ifndef EFS_RECORD_H
#define EFS_RECORD_H

#include "expertfs.h"

struct efs;
struct efs_record;

errint_t efs_record_build(struct efs *fs); /* -ENOMEM */
void efs_record_destroy(struct efs *fs);
uint64_t efs_record_bytes(void); /* size of the ring */

/* Sets the number of layers with experts, and width: the number of experts of the largest. Called before threads are
 * started. */
void efs_record_layers(struct efs *fs, uint32_t layers, uint32_t width);
/* With efs.lock held. Records a request of a layer for experts (numbers in the layer), each at most once; tokens NULL:
 * one token each. named: the request lists all experts of the layer; otherwise they come from leases or reads, and more
 * of the layer may follow. Ignored if a trace cannot hold the numbers. */
void efs_record_request(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                        bool named);

/* "trace": the requests as a routing trace, empty before the first pass. Results and errors as efs_describe(). Without
 * lock. */
errint_t efs_record_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
