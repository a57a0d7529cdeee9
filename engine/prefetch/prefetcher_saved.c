/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher_saved.c - see prefetcher.h: saves what the predictor has learned in the state directory, as
 * guesses-HASH.bin:
 *
 *     0  "EFSLEARN"    8  u64 content hash, little-endian    16  output of efs_predict_save(), with its checksum
 */
#include "prefetcher_internal.h"

#include "regular.h"
#include "state_file.h"
#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "EFSLEARN"
#define HEADER_BYTES 16u

static void saved_header(uint64_t content_hash, uint8_t header[HEADER_BYTES])
{
    uint64_t hash = htole64(content_hash);
    memcpy(header, MAGIC, 8);
    memcpy(header + 8, &hash, sizeof(hash));
}

static errint_t saved_write(uint64_t content_hash, const struct efs_predictor *predictor, struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    errint_t rc = efs_state_path("guesses", content_hash, "bin", path, sizeof(path), err);
    size_t bytes = HEADER_BYTES + efs_predict_save(predictor, NULL, 0);
    uint8_t *data = rc == 0 ? efs_sys_malloc(bytes) : NULL;
    if (rc == 0 && !data)
        rc = efs_fail(err, -ENOMEM, "%s: no memory", path);
    if (rc == 0) {
        saved_header(content_hash, data);
        efs_predict_save(predictor, data + HEADER_BYTES, bytes - HEADER_BYTES);
        rc = efs_state_save(path, data, bytes, err);
    }
    free(data);
    return rc;
}

static int saved_read_piece(void *from, uint64_t at, void *bytes, size_t size)
{
    return efs_sys_pread_all(*(const int *)from, bytes, size, HEADER_BYTES + at);
}

/* Checks the header. 0; -EINVAL: the file of another store; errors of the system. */
static errint_t saved_check(const struct efs *fs, int fd, uint64_t bytes)
{
    uint8_t wanted[HEADER_BYTES], header[HEADER_BYTES];
    if (bytes < HEADER_BYTES)
        return -EINVAL;
    errint_t rc = efs_sys_pread_all(fd, header, HEADER_BYTES, 0);
    saved_header(fs->store->sb.content_hash, wanted);
    return rc == 0 && memcmp(header, wanted, HEADER_BYTES) != 0 ? -EINVAL : rc;
}

void efs_prefetcher_save(struct efs *fs, const struct efs_predictor *predictor)
{
    struct efs_error err = {""};
    if (!fs->options.no_state && saved_write(fs->store->sb.content_hash, predictor, &err) < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not saved: %s", err.text);
}

void efs_prefetcher_load(struct efs *fs, struct efs_predictor *predictor)
{
    char path[EFS_STATE_PATH_BYTES];
    struct efs_error err = {""};
    struct stat st;
    if (fs->options.no_state ||
        efs_state_path("guesses", fs->store->sb.content_hash, "bin", path, sizeof(path), &err) < 0)
        return;
    int fd = efs_regular_open_path(path, &st, &err);
    if (fd == -ENOENT)
        return;
    if (fd < 0) {
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s", err.text);
        return;
    }
    errint_t rc = saved_check(fs, fd, (uint64_t)st.st_size);
    if (rc == 0)
        rc = efs_predict_load_from(predictor, saved_read_piece, &fd, (uint64_t)st.st_size - HEADER_BYTES);
    efs_sys_close(fd);
    if (rc == -EINVAL)
        efs_log(fs, EFS_LOG_INFO, "guesses begin anew: %s is of another store or predictor", path);
    else if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s: %s", path,
                rc == -EUCLEAN ? "damaged; it is replaced when the store is closed" : strerror(-rc));
}
