/* SPDX-License-Identifier: Apache-2.0 */
/* pack_report.c - the report, the index tables and the superblock. */
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "pack.h"

#include "checks.h"
#include "kernels.h"
#include "source.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTES_MAX 16 /* notes of files that are listed one by one */

enum { CLASS_COPY = EFS_GROUP_BLOB + 1 };
static const char *const classes[] = {
    [EFS_GROUP_EXPERT] = "expert", [EFS_GROUP_DENSE] = "dense", [EFS_GROUP_BLOB] = "other", [CLASS_COPY] = "copy"};

/* The row of a class and dtype; types beyond EFS_PACK_ROWS share the last row. */
static struct efs_pack_row *row_of(struct efs_pack_report *report, uint32_t kind, const char *dtype)
{
    struct efs_pack_row *row = report->rows;
    for (unsigned i = 0; i < report->row_count; i++, row++)
        if (strcmp(row->tensor_class, classes[kind]) == 0 && strcmp(row->dtype, dtype) == 0)
            return row;
    if (report->row_count == EFS_PACK_ROWS)
        return row - 1;
    report->row_count++;
    snprintf(row->tensor_class, sizeof(row->tensor_class), "%s", classes[kind]);
    snprintf(row->dtype, sizeof(row->dtype), "%s", dtype);
    return row;
}

/* Adds an object to its row; exponent_bits and entropy_bits are sums until finish_row(). */
static void add_object(const struct efs_index *plan, uint32_t object, double entropy_bits,
                       struct efs_pack_report *report)
{
    const struct efs_disk_object *o = &plan->objects[object];
    const char *dtype =
        o->tensor == EFS_NONE ? "bytes" : efs_dtype_name((enum efs_dtype)plan->tensors[o->tensor].dtype);
    struct efs_pack_row *row = row_of(report, plan->groups[o->group].kind, dtype);
    row->tensors += o->tensor_offset == 0; /* counts a fused tensor once, at its first slice */
    row->raw_bytes += o->bytes;
    uint64_t e_bytes = 0, sm_bytes = 0;
    for (uint32_t s = o->shard_first; s < o->shard_first + o->shard_count; s++) {
        const struct efs_disk_shard *shard = &plan->shards[s];
        e_bytes += shard->e_bytes;
        sm_bytes += shard->sm_bytes;
        row->coded_bytes += efs_chunk_up(shard->e_bytes) + efs_chunk_up(shard->sm_bytes) +
                            (shard->checks ? efs_checks_bytes(shard) : 0);
    }
    enum efs_format format = (enum efs_format)o->format;
    if (format == EFS_FORMAT_BYTES) { /* no lower bound is known: use the size reached */
        row->bound_bytes += (double)(e_bytes + sm_bytes);
        return;
    }
    uint64_t elements = o->bytes / efs_format_bytes(format);
    double rest = (double)efs_sm_bytes(format, (size_t)elements); /* sign and mantissa */
    row->elements += elements;
    row->exponent_bits += fmax(0, 8 * ((double)(e_bytes + sm_bytes) - rest));
    row->entropy_bits += entropy_bits;
    row->bound_bytes += entropy_bits / 8 + rest;
}

static void finish_row(struct efs_pack_row *row)
{
    if (row->elements == 0)
        return;
    row->exponent_bits /= (double)row->elements;
    row->entropy_bits /= (double)row->elements;
}

static int compare_rows(const void *a, const void *b)
{
    static const char order[] = "edoc"; /* first letters: expert, dense, other, copy */
    const struct efs_pack_row *p = a, *q = b;
    long c = strchr(order, p->tensor_class[0]) - strchr(order, q->tensor_class[0]);
    return c ? (c > 0) - (c < 0) : strcmp(p->dtype, q->dtype);
}

/* Appends a line to the notice. */
static void __attribute__((format(printf, 2, 3))) add_notice(struct efs_pack_report *report, const char *format, ...)
{
    size_t at = strlen(report->notice);
    va_list args;
    if (at && at + 1 < sizeof(report->notice))
        report->notice[at++] = '\n';
    va_start(args, format);
    vsnprintf(report->notice + at, sizeof(report->notice) - at, format, args);
    va_end(args);
}

/* Reports files that are stored once under several names. */
static void report_copies(const struct efs_catalog *catalog, struct efs_pack_report *report)
{
    const struct efs_source_file *first = NULL;
    uint64_t files = 0, bytes = 0;
    for (size_t f = 0; f < catalog->file_count; f++) {
        const struct efs_source_file *file = &catalog->files[f];
        if (!file->copy)
            continue;
        first = first ? first : file;
        files++;
        bytes += file->bytes;
    }
    if (!first)
        return;
    struct efs_pack_row *row = row_of(report, CLASS_COPY, "bytes");
    row->tensors += files;
    row->raw_bytes += bytes;
    add_notice(report, "%.400s has the bytes of %.400s and is stored once", first->path,
               catalog->files[first->original].path);
    if (files > 1)
        add_notice(report, "%llu more files have the bytes of others and are stored once",
                   (unsigned long long)files - 1);
}

/* Lists the notes of files: files stored as plain bytes, and files of other models. */
static void notice_files(const struct efs_catalog *catalog, struct efs_pack_report *report)
{
    size_t notice_bytes = 0;
    for (size_t f = 0; f < catalog->file_count; f++)
        if (catalog->files[f].note && notice_bytes++ < NOTES_MAX)
            add_notice(report, "%.400s%s", catalog->files[f].note,
                       catalog->files[f].has_tensors || efs_source_is_index(catalog->files[f].path)
                           ? ""
                           : "; packed as plain bytes, without experts");
    if (notice_bytes > NOTES_MAX)
        add_notice(report, "%zu more files are packed without experts", notice_bytes - NOTES_MAX);
}

static void report_notice(const struct efs_index *plan, struct efs_pack_report *report)
{
    const struct efs_catalog *catalog = plan->catalog;
    bool hidden = false;
    for (size_t f = 0; f < catalog->file_count; f++) {
        const char *path = catalog->files[f].path;
        size_t top = strcspn(path, "/");
        hidden |= (top == 7 && memcmp(path, "experts", 7) == 0) || (top == 9 && memcmp(path, ".expertfs", 9) == 0);
    }
    if (hidden)
        add_notice(report,
                   "the checkpoint has an \"experts\" or \".expertfs\" of its own: a mount shows it in place of "
                   "the expert files");
    if (catalog->skipped)
        add_notice(report, "%.400s, and is not packed", catalog->skipped);
    if (catalog->skipped_count > 1)
        add_notice(report, "%zu more folders are not packed", catalog->skipped_count - 1);
    if (catalog->lacks)
        add_notice(report, "%.400s; packed without it", catalog->lacks);
    notice_files(catalog, report);
}

/* Whether two names differ at most in their numbers. */
static bool same_but_numbers(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0123456789") - 1;
            b += strspn(b, "0123456789") - 1;
        } else if (*a != *b) {
            return false;
        }
    }
    return *a == *b;
}

/* The largest tensor whose name differs from those of the `count` ones in `found`, not only in numbers; NULL: none. */
static const struct efs_source_tensor *next_largest(const struct efs_catalog *catalog,
                                                    const struct efs_source_tensor *const *found, size_t count)
{
    const struct efs_source_tensor *largest = NULL;
    for (size_t t = 0; t < catalog->tensor_count; t++) {
        const struct efs_source_tensor *tensor = &catalog->tensors[t];
        size_t i = 0;
        if (largest && tensor->bytes <= largest->bytes)
            continue;
        while (i < count && !same_but_numbers(found[i]->name, tensor->name))
            i++;
        largest = i == count ? tensor : largest;
    }
    return largest;
}

void efs_pack_warn_dense(const struct efs_catalog *catalog, const char *done, char *text, size_t room)
{
    const struct efs_source_tensor *largest[3];
    char names[512] = "";
    size_t count = 0;
    *text = '\0';
    if (catalog->expert_count > 0 || catalog->tensor_count == 0)
        return;
    for (; count < 3 && (largest[count] = next_largest(catalog, largest, count)) != NULL; count++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%.150s", count ? ", " : "",
                 largest[count]->name);
    snprintf(text, room,
             "no experts were found: all of it is %s as dense\nhint: the largest tensors are %s; if experts are "
             "among them, `mkexpertfs --experts 'REGEX'` finds these",
             done, names);
}

/* Experts in types without exponents to code, where packing saves less than EFS_PACK_WORTH. */
static void notice_quantised(struct efs_pack_report *report)
{
    uint64_t raw_bytes = 0, coded_bytes = 0;
    char types[64] = "";
    for (unsigned i = 0; i < report->row_count; i++) {
        raw_bytes += report->rows[i].raw_bytes;
        coded_bytes += report->rows[i].coded_bytes;
    }
    for (unsigned i = 0; i < report->row_count && report->rows[i].tensor_class[0] == 'e'; i++) {
        const struct efs_pack_row *row = &report->rows[i];
        const char *type = strncmp(row->dtype, "ggml:", 5) == 0 ? row->dtype + 5 : row->dtype;
        size_t used = strlen(types);
        if (row->elements == 0)
            snprintf(types + used, sizeof(types) - used, "%s%s", used ? ", " : "", type);
    }
    if (types[0] && (double)coded_bytes > (1 - EFS_PACK_WORTH) * (double)raw_bytes)
        add_notice(report, "experts are quantised (%s) and do not shrink", types);
}

void efs_pack_report(const struct efs_index *plan, const double *entropy_bits, struct efs_pack_report *report)
{
    memset(report, 0, sizeof(*report));
    report->source_bytes = plan->source_bytes;
    report->files = plan->file_count;
    report->experts = plan->catalog->expert_count;
    report->tensors = plan->tensor_count;
    snprintf(report->family, sizeof(report->family), "%s", plan->catalog->family ? plan->catalog->family : "");
    efs_pack_warn_dense(plan->catalog, "packed", report->warning, sizeof(report->warning));
    report_notice(plan, report);
    report_copies(plan->catalog, report);
    for (uint32_t o = 0; o < plan->object_count; o++)
        add_object(plan, o, entropy_bits[o], report);
    for (unsigned i = 0; i < report->row_count; i++)
        finish_row(&report->rows[i]);
    qsort(report->rows, report->row_count, sizeof(report->rows[0]), compare_rows);
    if (plan->codec != EFS_CHOOSE_RAW)
        notice_quantised(report);
}

static json_t *row_json(const struct efs_pack_row *row)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "class", row->tensor_class, "dtype", row->dtype,
                     "tensors", (json_int_t)row->tensors, "raw_bytes", (json_int_t)row->raw_bytes, "coded_bytes",
                     (json_int_t)row->coded_bytes, "elements", (json_int_t)row->elements, "exponent_bits",
                     row->exponent_bits, "entropy_bits", row->entropy_bits, "bound_bytes", row->bound_bytes);
}

char *efs_pack_report_json(const struct efs_pack_report *report)
{
    json_t *rows = json_array();
    for (unsigned i = 0; i < report->row_count; i++)
        json_array_append_new(rows, row_json(&report->rows[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "packer", efs_version(), "family", report->family,
                  "source_bytes", (json_int_t)report->source_bytes, "files", (json_int_t)report->files, "experts",
                  (json_int_t)report->experts, "tensors", (json_int_t)report->tensors, "rows", rows);
    if (!root) {
        json_decref(rows);
        return NULL;
    }
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(10));
    json_decref(root);
    return text;
}

errint_t efs_pack_index(const struct efs_index *plan, struct efs_store_writer *writer, struct efs_pack_report *report,
                        struct efs_error *err)
{
    struct efs_index_tables tables;
    char *json = efs_pack_report_json(report);
    if (!json)
        return efs_fail(err, -ENOMEM, "%s: no memory for the report", writer->path);
    errint_t rc = efs_store_writer_page(writer, err);
    if (rc == 0)
        efs_index_tables(plan, json, writer->offset, &tables);
    for (int t = 0; rc == 0 && t < EFS_TABLE_COUNT; t++)
        rc = efs_store_writer_append(writer, tables.data[t], tables.sb.tables[t].bytes, err);
    free(json);
    if (rc < 0)
        return rc;
    report->store_bytes = tables.sb.store_bytes;
    report->content_hash = tables.sb.content_hash;
    return efs_store_writer_finish(writer, &tables.sb, err);
}
