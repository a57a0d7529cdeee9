/* SPDX-License-Identifier: Apache-2.0 */
/* estimate_model.c - what a store or a checkpoint holds, by names and sizes, and what the model says of itself. */
#include "estimate.h"

#include "checkpoint.h"
#include "expertfs-private.h"
#include "read_wait.h"
#include "rows.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_BYTES_MAX (UINT64_C(16) << 20)

/* Coded over plain bytes, as trained weights were measured; what is quantised in blocks stays as it is. */
static double coded_ratio(const char *dtype)
{
    static const struct {
        const char *dtype;
        double ratio;
    } measured[] = {{"BF16", 0.675}, {"F16", 0.855}, {"F32", 0.84}, {"F8_E4M3", 0.84}, {"F8_E5M2", 0.75}};
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++)
        if (strcmp(dtype, measured[i].dtype) == 0)
            return measured[i].ratio;
    return 1;
}

/* Sums of the table. coded: it has coded sizes. */
static void model_rows(struct estimate *e, const struct efs_pack_row *rows, unsigned count, bool coded)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct efs_pack_row *row = &rows[i];
        if (strcmp(row->tensor_class, "dense") == 0) {
            e->dense_bytes += row->raw_bytes;
        } else if (strcmp(row->tensor_class, "expert") == 0) {
            e->expert_bytes += row->raw_bytes;
            e->coded_bytes += coded ? row->coded_bytes : (uint64_t)((double)row->raw_bytes * coded_ratio(row->dtype));
            if (row->raw_bytes > most) {
                most = row->raw_bytes;
                snprintf(e->dtype, sizeof(e->dtype), "%s", row->dtype);
            }
        }
    }
}

/* ---- what the model says of itself ---- */

struct reader {
    struct efs *fs; /* a file of a store, else fd */
    uint32_t file;
    int fd;
};

static errint_t reader_read(void *arg, uint64_t offset, void *to, size_t bytes)
{
    const struct reader *reader = arg;
    if (!reader->fs) {
        ssize_t n = pread(reader->fd, to, bytes, (off_t)offset);
        return n < 0 ? -errno : (size_t)n == bytes ? 0 : -EUCLEAN;
    }
    return tools_read_wait(reader->fs, reader->file, offset, to, bytes);
}

static errint_t model_says(struct estimate *e, struct reader *reader, const char *name, uint64_t bytes,
                           struct efs_error *err)
{
    errint_t rc;
    if (e->gguf) {
        rc = tools_model_config_gguf(reader_read, reader, bytes, &e->config, err);
    } else {
        char *text = bytes <= CONFIG_BYTES_MAX ? malloc((size_t)bytes + 1) : NULL;
        rc = text ? reader_read(reader, 0, text, (size_t)bytes) : -EFBIG;
        rc = rc < 0 ? efs_fail(err, rc, "%s", strerror(-rc))
                    : tools_model_config_json(text, (size_t)bytes, &e->config, err);
        free(text);
    }
    if (rc < 0) {
        struct efs_error why = *err;
        efs_fail(err, rc, "%s: %s: %s", e->path, name, why.text);
    }
    if (rc < 0 && !e->gguf) { /* sizes and the budget do not need it */
        fprintf(stderr, "expertctl: %s; going on without it\n", err->text);
        memset(&e->config, 0, sizeof(e->config));
        rc = 0;
    }
    return rc;
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), most = strlen(end);
    return length > most && strcmp(name + length - most, end) == 0;
}

static errint_t store_says(struct estimate *e, struct efs_error *err)
{
    const struct efs_options options = {.size = sizeof(struct efs_options), .no_state = true};
    struct efs_file_info info, found = {.path = ""};
    struct reader reader = {.fd = -1};
    bool experts = false; /* the GGUF file that was found has them */
    errint_t rc = efs_open(e->path, &options, &reader.fs, err);
    if (rc < 0)
        return rc;
    for (uint32_t f = 0; f < efs_file_count(reader.fs); f++) {
        if (efs_file_info(reader.fs, f, &info, sizeof(info)) < 0 || info.kind != EFS_FILE_CHECKPOINT)
            continue;
        struct reader one = {.fs = reader.fs, .file = f, .fd = -1};
        bool gguf = !(e->gguf && experts) && tools_gguf_is_model(reader_read, &one, info.bytes, info.path);
        bool has_experts = gguf && efs_file_holds_expert(reader.fs, f, 0, info.bytes);
        if (gguf ? !e->gguf || has_experts : !e->gguf && strcmp(info.path, "config.json") == 0) {
            found = info;
            reader.file = f;
            e->gguf = gguf;
            experts = has_experts;
        }
    }
    if (found.path[0])
        rc = model_says(e, &reader, found.path, found.bytes, err);
    efs_close(reader.fs);
    return rc;
}

static errint_t model_of_store(struct estimate *e, struct efs_error *err)
{
    struct efs_pack_row rows[EFS_PACK_ROWS];
    struct efs_store *store;
    struct efs_store_info info;
    errint_t rc = efs_store_open(e->path, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info, sizeof(info));
    json_t *report = json_loadb(info.report_json, info.report_bytes, 0, NULL);
    const char *family = json_string_value(json_object_get(report, "family"));
    snprintf(e->family, sizeof(e->family), "%s", family ? family : "?");
    model_rows(e, rows, tools_rows_from_json(report, rows, EFS_PACK_ROWS), true);
    e->packed = true;
    e->source_bytes = info.source_bytes;
    e->store_bytes = info.store_bytes;
    e->layers = (uint32_t)info.layers;
    e->experts = info.layers ? (uint32_t)((info.experts + info.layers - 1) / info.layers) : 0;
    e->expert_bytes = info.expert_raw_bytes; /* the report is informational: another packer may have left it out */
    e->coded_bytes = info.expert_coded_bytes;
    json_decref(report);
    efs_store_close(store);
    return store_says(e, err);
}

static errint_t model_of_checkpoint(struct estimate *e, struct efs_error *err)
{
    struct tools_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    errint_t rc = checkpoint ? tools_checkpoint_read(e->path, checkpoint, err) : efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = efs_pack_check(e->path, err); /* of a part there would be wrong numbers */
    if (rc == 0) {
        snprintf(e->family, sizeof(e->family), "%s", checkpoint->family);
        model_rows(e, checkpoint->rows, checkpoint->row_count, false);
        e->source_bytes = checkpoint->bytes;
        e->layers = checkpoint->layers;
        e->experts = checkpoint->experts;
        e->gguf = checkpoint->gguf[0];
        double dense = (double)(e->source_bytes - e->expert_bytes);
        e->store_bytes = e->coded_bytes +
                         (uint64_t)(dense * (e->expert_bytes ? (double)e->coded_bytes / (double)e->expert_bytes : 1));
        const char *name = e->gguf ? checkpoint->gguf : checkpoint->config;
        struct reader reader = {.fd = name[0] ? open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1};
        struct stat st;
        if (reader.fd >= 0 && fstat(reader.fd, &st) == 0)
            rc = model_says(e, &reader, name, (uint64_t)st.st_size, err);
        else if (name[0])
            rc = efs_fail(err, -errno, "%s: %s", name, strerror(errno));
        if (reader.fd >= 0)
            close(reader.fd);
    }
    free(checkpoint);
    return rc;
}

errint_t estimate_model(struct estimate *e, struct efs_error *err)
{
    struct stat st;
    char magic[8] = "";
    if (stat(e->path, &st) < 0)
        return efs_fail(err, -errno, "%s: %s", e->path, strerror(errno));
    int fd = S_ISREG(st.st_mode) ? open(e->path, O_RDONLY | O_CLOEXEC) : -1;
    bool checkpoint = S_ISDIR(st.st_mode) || (fd >= 0 && pread(fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4)) ||
                      ends_with(e->path, ".safetensors") || ends_with(e->path, ".gguf");
    if (fd >= 0)
        close(fd);
    errint_t rc = checkpoint ? model_of_checkpoint(e, err) : model_of_store(e, err);
    if (rc == 0 && (!e->layers || !e->experts))
        rc = efs_fail(err, -ENODATA, "%s: there are no experts in it, and nothing to reckon", e->path);
    return rc;
}
