/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - efs_pack(): reads the catalogue, plans, packs, writes the index, verifies, names the store. */
#include "pack.h"
#include "expertfs-clock-private.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

errint_t efs_pack_check_options(const struct efs_pack_options *options, struct efs_error *err)
{
    uint32_t n = options->shard_elements;
    if (n != 0 && (n < EFS_SHARD_ELEMENTS_MIN || n > EFS_SHARD_ELEMENTS_MAX || n % EFS_BLOCK != 0))
        return efs_fail(err, -EINVAL, "a shard of %u elements is not a multiple of %u from %u to %u", n, EFS_BLOCK,
                        EFS_SHARD_ELEMENTS_MIN, EFS_SHARD_ELEMENTS_MAX);
    if (!efs_codec_can_choose(options->codec))
        return efs_fail(err, -EINVAL, "unknown codec %d", (int)options->codec);
    return 0;
}

errint_t efs_pack_check_output(const char *src, const char *out, const struct efs_pack_source *source,
                               struct efs_error *err)
{
    const char *slash = strrchr(out, '/');
    char *parent = slash ? strndup(out, slash == out ? 1 : (size_t)(slash - out)) : strdup(".");
    char *from = realpath(src, NULL);
    errint_t rc = from ? 0 : efs_fail(err, -errno, "%s: %s", src, strerror(errno));
    char *to = parent && rc == 0 ? realpath(parent, NULL) : NULL;
    struct stat st;
    if (rc == 0 && !to)
        rc = efs_fail(err, -errno, "%s: %s", out, strerror(errno));
    int fd = rc == 0 ? efs_sys_open(src, O_PATH, 0) : -1;
    if (fd >= 0) {
        int stat_rc = efs_sys_fstat(fd, &st);
        size_t n = strlen(from);
        bool below = strncmp(to, from, n) == 0 && (to[n] == '\0' || to[n] == '/' || strcmp(from, "/") == 0);
        if (stat_rc == 0 && S_ISDIR(st.st_mode) && below)
            rc = efs_fail(err, -EINVAL, "%s: lies inside the source %s; put the store elsewhere", out, src);
        efs_sys_close(fd);
    }
    fd = rc == 0 ? efs_sys_open(out, O_PATH, 0) : -1;
    if (fd >= 0) {
        char *whole = realpath(out, NULL);
        if ((whole && strcmp(whole, from) == 0) ||
            (efs_sys_fstat(fd, &st) == 0 && efs_pack_source_has(source, st.st_dev, st.st_ino)))
            rc = efs_fail(err, -EINVAL, "%s: is one of the files to be packed", out);
        free(whole);
        efs_sys_close(fd);
    }
    free(parent);
    free(from);
    free(to);
    return rc;
}

struct job {
    const struct efs_pack_options *options;
    struct efs_catalog catalog;
    struct efs_pack_source *source;
    struct efs_store_writer writer;
    struct efs_index plan;
    struct efs_pack_state state;
    bool has_state;
    double *entropy_bits;
};

static bool pack_progress(const struct efs_pack_options *options, uint64_t done, uint64_t total, const char *phase)
{
    return options->progress && options->progress(options->progress_arg, done, total, phase);
}

/* Reports the files that were the same ones from before their bytes were read to the end. */
static void report_packed(const struct job *j, const struct efs_pack_report *report)
{
    for (uint32_t f = 0; j->options->packed && f < j->plan.file_count; f++) {
        const struct stat *st = efs_pack_source_untouched(j->source, f);
        if (st)
            j->options->packed(j->options->packed_arg, report, f, st);
    }
}

static errint_t pack(struct job *j, const char *out, struct efs_pack_report *report, struct efs_error *err)
{
    const struct efs_pack_options *options = j->options;
    uint32_t shard_elements = options->shard_elements ? options->shard_elements : EFS_SHARD_ELEMENTS_DEFAULT;
    errint_t rc = efs_index_plan(&j->plan, &j->catalog, options->codec, shard_elements, err);
    if (rc < 0)
        return rc;
    if (options->small_reads_bytes)
        j->plan.small_reads_bytes = options->small_reads_bytes;
    j->entropy_bits = efs_sys_calloc((size_t)j->plan.object_count + 1, sizeof(double));
    if (!j->entropy_bits)
        return efs_fail(err, -ENOMEM, "%s: no memory", out);
    j->has_state = true;
    if (efs_pack_state_begin(&j->plan, j->entropy_bits, &j->state) < 0)
        return efs_fail(err, -ENOMEM, "%s: no memory", out);
    rc = efs_pack_run(&j->plan, j->source, &j->writer, options, &j->state, UINT64_MAX, err);
    if (rc < 0)
        return rc;
    uint64_t total = j->plan.source_bytes;
    if (pack_progress(options, total, total, "syncing"))
        return efs_fail(err, -ECANCELED, "interrupted");
    efs_pack_report(&j->plan, j->entropy_bits, report);
    rc = efs_pack_index(&j->plan, &j->writer, report, err);
    if (rc == 0 && options->verify)
        rc = efs_pack_verify(&j->plan, j->source, &j->writer, options, err);
    if (rc == 0)
        rc = efs_pack_source_unchanged(j->source, err);
    if (rc == 0)
        rc = efs_pack_verify_renumbered(&j->plan, j->source, err);
    if (rc == 0 && pack_progress(options, total, total, "naming"))
        rc = efs_fail(err, -ECANCELED, "interrupted");
    if (rc == 0)
        rc = efs_store_writer_commit(&j->writer, err);
    if (rc == 0)
        report_packed(j, report);
    return rc;
}

errint_t efs_pack(const char *src, const char *out, const struct efs_pack_options *options,
                  struct efs_pack_report *report, struct efs_error *err)
{
    struct job j = {.options = options, .writer = {.dir = -1, .file = {.fd = -1}}};
    uint64_t began = efs_now_ns();
    bool parts = false;
    *report = (struct efs_pack_report){0};
    errint_t rc = efs_pack_check_options(options, err);
    if (rc == 0) /* first: it may reject out, and reading a large checkpoint's catalogue takes long */
        rc = efs_store_writer_open(&j.writer, out, options->force, err);
    if (rc == 0)
        rc = options->weights ? efs_catalog_read_parts(src, options->experts, &j.catalog, &parts, err)
                              : efs_catalog_read(src, options->experts, &j.catalog, err);
    if (rc == 0)
        rc = efs_pack_source_open(&j.catalog, &j.source, err);
    if (rc == 0 && options->weights)
        rc = efs_catalog_check(parts ? j.catalog.root : src, &j.catalog, err);
    if (rc == 0)
        rc = efs_pack_check_output(src, out, j.source, err);
    if (rc == 0)
        rc = efs_pack_find_copies(&j.catalog, j.source, options, err);
    if (rc == 0)
        rc = pack(&j, out, report, err);
    if (rc == -ENOSPC && err && j.plan.source_bytes) {
        const struct efs_error why = *err;
        efs_fail(err, rc, "%.800s; the store of %llu MiB of files may take as much", why.text,
                 (unsigned long long)((j.plan.source_bytes >> 20) + 1));
    }
    report->seconds = 1e-9 * (double)(efs_now_ns() - began);
    efs_store_writer_close(&j.writer);
    efs_pack_source_close(j.source);
    if (j.has_state)
        efs_pack_state_free(&j.plan, &j.state);
    efs_index_free(&j.plan);
    efs_catalog_free(&j.catalog);
    free(j.entropy_bits);
    return rc;
}
