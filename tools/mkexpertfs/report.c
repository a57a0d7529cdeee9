/* report.c - what packing did, for people and for programs. */
#include "mkexpertfs.h"

#include "size.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_row(const struct efs_pack_row *row)
{
    char raw[16], coded[16];
    printf("%-7s %-10s %8llu %10s %10s %6.3f", row->tensor_class, row->dtype, (unsigned long long)row->tensors,
           tools_size_print(row->raw_bytes, raw, sizeof(raw)), tools_size_print(row->coded_bytes, coded, sizeof(coded)),
           ratio((double)row->coded_bytes, (double)row->raw_bytes));
    if (row->elements)
        printf(" %9.3f %8.3f %9.4f\n", row->exponent_bits, row->entropy_bits,
               ratio((double)row->coded_bytes, row->bound_bytes));
    else
        printf(" %9s %8s %9s\n", "-", "-", "-");
}

void print_report(const struct efs_pack_report *r, const char *out)
{
    char source[16], store[16], speed[16], time[16];
    double rate = ratio((double)r->source_bytes, r->seconds);
    printf("%-7s %-10s %8s %10s %10s %6s %9s %8s %9s\n", "class", "dtype", "tensors", "bytes", "packed", "ratio",
           "bits/exp", "entropy", "of bound");
    for (unsigned i = 0; i < r->row_count; i++)
        print_row(&r->rows[i]);
    printf("%s: %llu files, %llu tensors, %llu experts (%s); %s -> %s (%.3f) in %s, %s/s\n", out,
           (unsigned long long)r->files, (unsigned long long)r->tensors, (unsigned long long)r->experts, r->family,
           tools_size_print(r->source_bytes, source, sizeof(source)),
           tools_size_print(r->store_bytes, store, sizeof(store)),
           ratio((double)r->store_bytes, (double)r->source_bytes), tools_duration_print(r->seconds, time, sizeof(time)),
           tools_size_print((uint64_t)rate, speed, sizeof(speed)));
}

bool print_report_json(const struct efs_pack_report *r, const char *out)
{
    json_t *rows = json_array();
    for (unsigned i = 0; i < r->row_count; i++) {
        const struct efs_pack_row *row = &r->rows[i];
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "class", row->tensor_class,
                                        "dtype", row->dtype, "tensors", (json_int_t)row->tensors, "raw_bytes",
                                        (json_int_t)row->raw_bytes, "coded_bytes", (json_int_t)row->coded_bytes,
                                        "elements", (json_int_t)row->elements, "exponent_bits", row->exponent_bits,
                                        "entropy_bits", row->entropy_bits, "bound_bytes", row->bound_bytes));
    }
    json_t *root =
        json_pack("{s:s?, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "store", out, "family", r->family, "notice",
                  r->notice, "source_bytes", (json_int_t)r->source_bytes, "store_bytes", (json_int_t)r->store_bytes,
                  "files", (json_int_t)r->files, "experts", (json_int_t)r->experts, "tensors", (json_int_t)r->tensors,
                  "seconds", r->seconds, "rows", rows);
    bool printed = root && json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) == 0;
    printf("\n");
    json_decref(root);
    return printed;
}
