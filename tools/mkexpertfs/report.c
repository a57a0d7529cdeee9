/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - the report at the end of a packing run, as text and as JSON. */
#include "mkexpertfs.h"

#include "rows.h"
#include "size.h"

#include <jansson.h>
#include <stdio.h>

void print_report(const struct efs_pack_report *r, const char *out)
{
    char source[16], store[16], speed[16], time[16], files[32], tensors[32], experts[32];
    double source_bytes = (double)r->source_bytes;
    tools_rows_print(r->rows, r->row_count);
    printf("%s: %s, %s, %s (%s)\n", out, tools_count_print(r->files, "file", files, sizeof(files)),
           tools_count_print(r->tensors, "tensor", tensors, sizeof(tensors)),
           tools_count_print(r->experts, "expert", experts, sizeof(experts)), r->family);
    printf("%s -> %s (%.3f) in %s, %s/s\n", tools_size_print(r->source_bytes, source, sizeof(source)),
           tools_size_print(r->store_bytes, store, sizeof(store)),
           r->source_bytes ? (double)r->store_bytes / source_bytes : 0,
           tools_duration_print(r->seconds, time, sizeof(time)),
           tools_size_print(r->seconds > 0 ? (uint64_t)(source_bytes / r->seconds) : 0, speed, sizeof(speed)));
}

bool print_report_json(const struct efs_pack_report *r, const char *out)
{
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "store", "", "family",
                             r->family, "warning", r->warning, "notice", r->notice, "source_bytes",
                             (json_int_t)r->source_bytes, "store_bytes", (json_int_t)r->store_bytes, "files",
                             (json_int_t)r->files, "experts", (json_int_t)r->experts, "tensors", (json_int_t)r->tensors,
                             "seconds", r->seconds, "rows", tools_rows_to_json(r->rows, r->row_count));
    json_t *name = json_string(out); /* NULL when the path is not UTF-8 */
    if (root)
        json_object_set_new(root, "store", name ? name : json_null());
    bool printed = root && json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) == 0;
    printf("\n");
    json_decref(root);
    return printed;
}
