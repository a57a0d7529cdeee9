/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - what was read and decoded when (.expertfs/sched of a mount), each operation in its lane of a chart. */
#ifndef TOOLS_OPERATIONS_H
#define TOOLS_OPERATIONS_H

#include "expertfs.h"

#include <stdio.h>

enum tools_operation_kind { TOOLS_READ_E, TOOLS_READ_SM, TOOLS_DECODE, TOOLS_OPERATION_KINDS };
extern const char *const tools_operation_names[TOOLS_OPERATION_KINDS]; /* as in the file */

struct tools_operation {
    enum tools_operation_kind kind;
    uint32_t unit, shard, lane;
    int32_t thread;
    uint64_t begin_ns, end_ns;
    char expert[64]; /* letters, digits, '/', '-', '_' */
};

struct tools_operations {
    struct tools_operation *operations; /* by begin */
    size_t count;
    uint32_t lanes;
    struct tools_lane {
        bool reads;
        int32_t thread; /* of decodes */
        uint64_t end_ns;
        char name[40];
    } * lane;
};

/* The table of .expertfs/sched, path its file; those of the last so many ns (0: all). -EUCLEAN: not such a table;
 * -ENODATA: nothing was done; what the system says. */
errint_t tools_operations_read(const char *path, uint64_t last_ns, struct tools_operations *operations,
                               struct efs_error *err);
/* The same of a text that is open for reading and is called that in errors. */
errint_t tools_operations_take(FILE *in, const char *name, uint64_t last_ns, struct tools_operations *operations,
                               struct efs_error *err);
void tools_operations_free(struct tools_operations *operations);

#endif
