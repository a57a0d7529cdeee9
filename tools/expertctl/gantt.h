/* gantt.h - what was read and decoded when (.expertfs/sched of a mount), as a chart. */
#ifndef EXPERTCTL_GANTT_H
#define EXPERTCTL_GANTT_H

#include "libexpertfs.h"

#include <stdio.h>

enum gantt_kind { GANTT_READ_E, GANTT_READ_SM, GANTT_DECODE, GANTT_KINDS };
extern const char *const gantt_kinds[GANTT_KINDS]; /* as in the file */

struct gantt_operation {
    enum gantt_kind kind;
    uint32_t unit, shard, lane;
    int32_t thread;
    uint64_t begin_ns, end_ns;
    char expert[64]; /* letters, digits, '/', '-', '_' */
};

struct gantt {
    struct gantt_operation *operations; /* by begin */
    size_t count;
    uint32_t lanes;
    struct gantt_lane {
        bool reads;
        int32_t thread; /* of decodes */
        uint64_t end_ns;
        char name[40];
    } * lane;
};

/* The table of .expertfs/sched, path its file; those of the last so many ns (0: all). -EUCLEAN: not such a table;
 * -ENODATA: nothing was done; what the system says. */
errint_t gantt_read(const char *path, uint64_t last_ns, struct gantt *gantt, struct efs_error *err);
void gantt_free(struct gantt *gantt);

/* Trace events for chrome://tracing and Perfetto. */
void gantt_write_json(const struct gantt *gantt, FILE *out);
/* A picture by gnuplot: terminal "svg" or "png". -ENOENT: there is no gnuplot; -EIO: it failed. */
errint_t gantt_draw(const struct gantt *gantt, const char *terminal, const char *path, struct efs_error *err);

#endif
