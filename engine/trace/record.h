/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - rings of the latest operations and requests.
 *
 * trace/ records the latest operations and requests of a served store in memory, and returns them as text. cache/ and
 * serve/ call it. It never takes efs.lock and never writes a file.
 *
 * Operations are reads and decodes of experts, for a chart of the schedule as executed (ZipMoE Figure 7); requests are
 * for a trace. The size of the rings is fixed. Their lock is the innermost: no lock is taken while it is held.
 */
#ifndef EFS_RECORD_H
#define EFS_RECORD_H

#include "expertfs.h"

struct efs;
struct efs_record;

enum efs_record_kind { EFS_RECORD_READ_E, EFS_RECORD_READ_SM, EFS_RECORD_DECODE };

errint_t efs_record_build(struct efs *fs); /* -ENOMEM */
void efs_record_destroy(struct efs *fs);
uint64_t efs_record_bytes(void); /* size of the rings */

/* Sets the number of layers with experts, and width: the number of experts of the largest. Called before threads are
 * started. */
void efs_record_layers(struct efs *fs, uint32_t layers, uint32_t width);
/* Records an operation that ran, or ended, on the calling thread. extent: counted from the expert's first; begin_ns and
 * end_ns: of efs_now_ns(). */
void efs_record(struct efs *fs, enum efs_record_kind kind, uint32_t expert, uint32_t extent, uint32_t shard,
                uint64_t begin_ns, uint64_t end_ns);
/* Records a request of a layer for experts (numbers in the layer), each at most once; tokens NULL: one token
 * each. named: the request lists all experts of the layer; otherwise they come from leases or reads, and more of the
 * layer may follow. Ignored if a trace cannot hold the numbers. */
void efs_record_request(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                        bool named);

/* "sched": one line per operation; "trace": the requests as a routing trace, empty before the first pass. Results and
 * errors as efs_describe(). */
errint_t efs_record_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
