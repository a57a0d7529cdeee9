/* SPDX-License-Identifier: Apache-2.0 */
/* arena_describe.c - prints the arena's nodes and pages as lines of `name: value`. */
#include "arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

void efs_arena_describe(const struct efs_arena *arena, FILE *out)
{
    fprintf(out, "numa: %s\nnuma_nodes: %u\nnuma_bytes:", arena->numa_kind, arena->node_count);
    for (uint32_t n = 0; n < arena->node_count; n++)
        fprintf(out, " N%u=%" PRIu64, arena->nodes[n].numa.id,
                (uint64_t)arena->nodes[n].segment_count * arena->segment_bytes);
    fprintf(out, "\nnuma_bound_bytes:");
    for (uint32_t n = 0; n < arena->node_count; n++)
        fprintf(out, " N%u=%" PRIu64, arena->nodes[n].numa.id,
                (uint64_t)arena->nodes[n].bound_count * arena->segment_bytes);
    fprintf(out, "\nnuma_reason:");
    bool all = true;
    for (uint32_t n = 0; n < arena->node_count; n++) {
        errint_t error = arena->nodes[n].bind_error;
        if (error && arena->nodes[n].bound_count < arena->nodes[n].segment_count) {
            fprintf(out, "%s N%u: %s", all ? "" : ";", arena->nodes[n].numa.id,
                    error == -ENOMEM ? "the node is full" : strerror(-error));
            all = false;
        }
    }
    fprintf(out, "%s\npopulated_bytes: %" PRIu64 "\n", all ? " -" : "", atomic_load(&arena->populated_bytes));
    if (atomic_load(&arena->huge_unknown))
        fprintf(out, "huge_bytes: unknown\n");
    else
        fprintf(out, "huge_bytes: %" PRIu64 "\n", atomic_load(&arena->huge_bytes));
}
