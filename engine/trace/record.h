/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - what was done when: the latest reads and decodes of experts, for a chart of a schedule as it went (ZipMoE
 * Figure 7), and the latest requests, for a trace. Rings of fixed size with a lock of their own, which is taken last.
 */
#ifndef EFS_RECORD_H
#define EFS_RECORD_H

#include "expertfs.h"

struct efs;
struct efs_record;

enum efs_record_kind { EFS_RECORD_READ_E, EFS_RECORD_READ_SM, EFS_RECORD_DECODE };

errint_t efs_record_build(struct efs *fs); /* -ENOMEM */
void efs_record_destroy(struct efs *fs);
uint64_t efs_record_bytes(void); /* that it holds */

/* Layers of experts; width: experts of the largest. Before there are threads. */
void efs_record_layers(struct efs *fs, uint32_t layers, uint32_t width);
/* An operation on an extent of an expert, counted from its first, took place on the calling thread, or ended on it, at
 * these times of efs_now_ns(). */
void efs_record(struct efs *fs, enum efs_record_kind kind, uint32_t expert, uint32_t extent, uint32_t shard,
                uint64_t begin_ns, uint64_t end_ns);
/* A request of a layer and its experts (numbers of the cache state), each once; tokens NULL: one each. named: they were
 * named together; else they are what leases or reads came for, and more of the same layer may follow. */
void efs_record_request(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                        bool named);

/* "sched": a line for each operation; "trace": the requests as a routing trace, nothing before there is a pass. As
 * efs_describe(). */
errint_t efs_record_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
