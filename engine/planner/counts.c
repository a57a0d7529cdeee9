/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counts.c - the file format of the request history: little-endian, struct header, then
 *
 *     u64 passes[layers], u64 ranked[layers], u32 counts[layers][experts], u32 at_rank[layers][experts]
 */
#include "counts.h"

#include "hash.h"
#include "regular.h"
#include "state_file.h"
#include "sys.h"
#include "expertfs-profile-private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "EFSCOUNT"
#define VERSION 1u

/* Native byte order: the engine supports only little-endian hosts (layout.h). */
struct header {
    char magic[8];
    uint32_t version, reserved;
    uint64_t content_hash;
    uint32_t layers, experts;
    uint64_t sequences;
    uint64_t hash; /* XXH3_64 of the file with this field 0 */
};
static_assert(sizeof(struct header) == 48, "header");

/* Size of the file. A history is within EFS_HISTORY_MAX_LAYERS and _EXPERTS: at most 34 MB. */
static size_t file_bytes(const struct efs_history *h)
{
    return sizeof(struct header) + 16 * (size_t)h->layers + 8 * (size_t)h->layers * h->experts;
}

errint_t efs_counts_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err)
{
    return efs_state_path("counts", content_hash, "bin", path, room, err);
}

/* Copies the history's arrays to the file's at data (out), or back. */
static void copy_arrays(const struct efs_history *h, uint8_t *data, bool out)
{
    size_t layers = h->layers, cells = layers * h->experts;
    const struct {
        void *array;
        size_t bytes;
    } arrays[] = {{h->passes, 8 * layers}, {h->ranked, 8 * layers}, {h->counts, 4 * cells}, {h->at_rank, 4 * cells}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        memcpy(out ? data : arrays[i].array, out ? arrays[i].array : data, arrays[i].bytes);
        data += arrays[i].bytes;
    }
}

/* ---- saving ------------------------------------------------------------------------------------------------- */

void *efs_counts_pack(uint64_t content_hash, const struct efs_history *history, size_t *bytes)
{
    *bytes = file_bytes(history);
    uint8_t *data = efs_sys_malloc(*bytes);
    if (!data)
        return NULL;
    struct header header = {.magic = MAGIC,
                            .version = VERSION,
                            .content_hash = content_hash,
                            .layers = history->layers,
                            .experts = history->experts,
                            .sequences = history->sequences};
    memcpy(data, &header, sizeof(header));
    copy_arrays(history, data + sizeof(header), true);
    header.hash = efs_hash(data, *bytes);
    memcpy(data, &header, sizeof(header));
    return data;
}

errint_t efs_counts_save(uint64_t content_hash, const struct efs_history *history, struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    size_t bytes;
    errint_t rc = efs_counts_path(content_hash, path, sizeof(path), err);
    if (rc < 0)
        return rc;
    void *data = efs_counts_pack(content_hash, history, &bytes);
    if (!data)
        return efs_fail(err, -ENOMEM, "%s: no memory", path);
    rc = efs_state_save(path, data, bytes, err);
    free(data);
    return rc;
}

/* ---- loading ------------------------------------------------------------------------------------------------ */

/* Checks the header before the arrays are used. Returns NULL, or the reason for refusing the file. */
static const char *check_header(uint8_t *data, size_t bytes, uint64_t content_hash, struct efs_history *h)
{
    struct header header;
    if (bytes < sizeof(header) || memcmp(data, MAGIC, 8) != 0)
        return "not a file of counts";
    memcpy(&header, data, sizeof(header));
    if (header.version != VERSION)
        return "counts of a version that is not known";
    if (header.reserved != 0)
        return "a reserved field is not 0";
    if (header.content_hash != content_hash)
        return "counts of another store";
    if (header.layers != h->layers || header.experts != h->experts)
        return "counts of other layers and experts";
    if (bytes != file_bytes(h))
        return "cut, or too long";
    uint64_t hash = header.hash;
    header.hash = 0;
    memcpy(data, &header, sizeof(header));
    h->sequences = header.sequences;
    return efs_hash(data, bytes) == hash ? NULL : "the checksum is wrong";
}

/* Checks the range of each number, because a checksum can be forged. */
static const char *check_numbers(const struct efs_history *h)
{
    for (unsigned l = 0; l < h->layers; l++) {
        if (h->passes[l] > EFS_HISTORY_MAX_PASSES)
            return "more passes than there can be";
        if (h->ranked[l] > h->passes[l])
            return "more passes with ranks than passes";
        for (size_t i = (size_t)l * h->experts; i < (size_t)(l + 1) * h->experts; i++) {
            if (h->counts[i] > h->passes[l])
                return "an expert asked for more often than its layer";
            if (h->at_rank[i] > h->ranked[l])
                return "a rank asked for more often than its layer";
        }
    }
    return NULL;
}

/* Reads the file into *data, which the caller frees, at most expected bytes. */
static errint_t read_file(const char *path, size_t expected, uint8_t **data, size_t *bytes, struct efs_error *err)
{
    struct stat st;
    int fd = efs_regular_open_path(path, &st, err);
    if (fd < 0)
        return fd;
    *bytes = (uint64_t)st.st_size < expected ? (size_t)st.st_size : expected;
    *data = efs_sys_malloc(expected);
    errint_t rc = *data ? 0 : -ENOMEM;
    if (rc == 0)
        rc = efs_sys_pread_all(fd, *data, *bytes, 0);
    if (rc == 0 && (uint64_t)st.st_size > expected)
        ++*bytes; /* too long: check_header() refuses it, after its more specific reasons */
    efs_sys_close(fd);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

size_t efs_counts_bytes(unsigned layers, unsigned experts)
{
    return file_bytes(&(struct efs_history){.layers = layers, .experts = experts});
}

const char *efs_counts_unpack(void *data, size_t bytes, uint64_t content_hash, struct efs_history *history)
{
    const char *wrong = check_header(data, bytes, content_hash, history);
    if (!wrong) {
        copy_arrays(history, (uint8_t *)data + sizeof(struct header), false);
        wrong = check_numbers(history);
    }
    if (wrong)
        efs_history_clear(history);
    return wrong;
}

errint_t efs_counts_read(const char *path, uint64_t content_hash, unsigned layers, unsigned experts,
                         struct efs_history *history, struct efs_error *err)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    errint_t rc = efs_history_init(history, layers, experts);
    if (rc < 0)
        return efs_fail(err, rc, "a history of %u layers of %u experts: %s", layers, experts, strerror(-rc));
    rc = read_file(path, file_bytes(history), &data, &bytes, err);
    const char *wrong = rc == 0 ? efs_counts_unpack(data, bytes, content_hash, history) : NULL;
    free(data);
    return wrong ? efs_fail(err, -EUCLEAN, "%s: %s", path, wrong) : rc;
}

errint_t efs_counts_load(uint64_t content_hash, unsigned layers, unsigned experts, struct efs_history *history,
                         struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    *history = (struct efs_history){.layers = 0};
    errint_t rc = efs_counts_path(content_hash, path, sizeof(path), err);
    return rc < 0 ? rc : efs_counts_read(path, content_hash, layers, experts, history, err);
}
