/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - see rows.h. */
#include "rows.h"

#include "size.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static double ratio_of(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Rows of bytes count parts of files, which are no tensors. */
static bool row_has_tensors(const struct efs_pack_row *row)
{
    return strcmp(row->dtype, "bytes") != 0;
}

static void print_row(const struct efs_pack_row *row)
{
    char raw[16], coded[16], tensors[24] = "-";
    if (row_has_tensors(row))
        snprintf(tensors, sizeof(tensors), "%llu", (unsigned long long)row->tensors);
    printf("%-6s %-9s %8s %9s %9s %6.3f", row->tensor_class, row->dtype, tensors,
           tools_size_print(row->raw_bytes, raw, sizeof(raw)), tools_size_print(row->coded_bytes, coded, sizeof(coded)),
           ratio_of((double)row->coded_bytes, (double)row->raw_bytes));
    if (row->elements)
        printf(" %8.3f %8.3f %8.4f\n", row->exponent_bits, row->entropy_bits,
               ratio_of((double)row->coded_bytes, row->bound_bytes));
    else
        printf(" %8s %8s %8s\n", "-", "-", "-");
}

void tools_rows_print(const struct efs_pack_row *rows, unsigned count)
{
    printf("%-6s %-9s %8s %9s %9s %6s %8s %8s %8s\n", "class", "dtype", "tensors", "bytes", "packed", "ratio",
           "bits/exp", "entropy", "of bound");
    struct efs_pack_row all = {.tensor_class = "all"};
    for (unsigned i = 0; i < count; i++) {
        print_row(&rows[i]);
        all.tensors += row_has_tensors(&rows[i]) ? rows[i].tensors : 0;
        all.raw_bytes += rows[i].raw_bytes;
        all.coded_bytes += rows[i].coded_bytes;
        all.elements += rows[i].elements;
        all.bound_bytes += rows[i].bound_bytes;
        all.exponent_bits += rows[i].exponent_bits * (double)rows[i].elements;
        all.entropy_bits += rows[i].entropy_bits * (double)rows[i].elements;
    }
    all.exponent_bits = ratio_of(all.exponent_bits, (double)all.elements);
    all.entropy_bits = ratio_of(all.entropy_bits, (double)all.elements);
    if (count > 1)
        print_row(&all);
}

json_t *tools_rows_to_json(const struct efs_pack_row *rows, unsigned count)
{
    json_t *array = json_array();
    for (unsigned i = 0; i < count; i++) {
        const struct efs_pack_row *row = &rows[i];
        json_t *object =
            json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "class", row->tensor_class, "dtype", row->dtype,
                      "tensors", (json_int_t)row->tensors, "raw_bytes", (json_int_t)row->raw_bytes, "coded_bytes",
                      (json_int_t)row->coded_bytes, "elements", (json_int_t)row->elements, "exponent_bits",
                      row->exponent_bits, "entropy_bits", row->entropy_bits, "bound_bytes", row->bound_bytes);
        if (json_array_append_new(array, object) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static uint64_t row_number(const json_t *row, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(row, name));
    return n > 0 ? (uint64_t)n : 0;
}

static void row_text(const json_t *row, const char *name, char *out, size_t room)
{
    const char *s = json_string_value(json_object_get(row, name));
    snprintf(out, room, "%s", s ? s : "?");
}

unsigned tools_rows_from_json(const json_t *report, struct efs_pack_row *rows, unsigned room)
{
    const json_t *array = json_object_get(report, "rows");
    unsigned count = 0;
    for (size_t i = 0; i < json_array_size(array) && count < room; i++, count++) {
        const json_t *row = json_array_get(array, i);
        struct efs_pack_row *r = &rows[count];
        *r = (struct efs_pack_row){.tensors = row_number(row, "tensors"),
                                   .raw_bytes = row_number(row, "raw_bytes"),
                                   .coded_bytes = row_number(row, "coded_bytes"),
                                   .elements = row_number(row, "elements"),
                                   .exponent_bits = json_number_value(json_object_get(row, "exponent_bits")),
                                   .entropy_bits = json_number_value(json_object_get(row, "entropy_bits")),
                                   .bound_bytes = json_number_value(json_object_get(row, "bound_bytes"))};
        row_text(row, "class", r->tensor_class, sizeof(r->tensor_class));
        row_text(row, "dtype", r->dtype, sizeof(r->dtype));
    }
    return count;
}
