/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guess_save.c - what the predictor has learned, from one mount to the next: a file of the state directory.
 *
 *     0  "EFSLEARN"    8  u64 content hash, little-endian    16  what efs_predict_save() makes, with its checksum
 */
#include "guess_core.h"

#include "regular.h"
#include "state_file.h"
#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "EFSLEARN"
#define HEADER_BYTES 16u

static void guess_header(const struct efs *fs, uint8_t header[HEADER_BYTES])
{
    uint64_t hash = htole64(fs->store->sb.content_hash);
    memcpy(header, MAGIC, 8);
    memcpy(header + 8, &hash, sizeof(hash));
}

static errint_t guess_path(const struct efs *fs, char path[EFS_STATE_PATH_BYTES], struct efs_error *err)
{
    return efs_state_path("guesses", fs->store->sb.content_hash, "bin", path, EFS_STATE_PATH_BYTES, err);
}

void efs_guess_save(struct efs *fs, const struct efs_predictor *predictor)
{
    char path[EFS_STATE_PATH_BYTES];
    struct efs_error err = {""};
    if (fs->options.no_state)
        return;
    errint_t rc = guess_path(fs, path, &err);
    size_t bytes = HEADER_BYTES + efs_predict_save(predictor, NULL, 0);
    uint8_t *data = rc == 0 ? efs_sys_malloc(bytes) : NULL;
    if (rc == 0 && !data)
        rc = efs_fail(&err, -ENOMEM, "%s: no memory", path);
    if (rc == 0) {
        guess_header(fs, data);
        efs_predict_save(predictor, data + HEADER_BYTES, bytes - HEADER_BYTES);
        rc = efs_state_save(path, data, bytes, &err);
    }
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not saved: %s", err.text);
    free(data);
}

static int guess_read_piece(void *from, uint64_t at, void *bytes, size_t size)
{
    return efs_sys_pread_all(*(const int *)from, bytes, size, HEADER_BYTES + at);
}

static errint_t guess_read(const struct efs *fs, int fd, uint64_t bytes, struct efs_predictor *predictor)
{
    uint8_t wanted[HEADER_BYTES], header[HEADER_BYTES];
    if (bytes < HEADER_BYTES)
        return -EINVAL;
    errint_t rc = efs_sys_pread_all(fd, header, HEADER_BYTES, 0);
    guess_header(fs, wanted);
    if (rc == 0 && memcmp(header, wanted, HEADER_BYTES) != 0)
        rc = -EINVAL;
    return rc < 0 ? rc : efs_predict_load_from(predictor, guess_read_piece, &fd, bytes - HEADER_BYTES);
}

void efs_guess_load(struct efs *fs, struct efs_predictor *predictor)
{
    char path[EFS_STATE_PATH_BYTES];
    struct efs_error err = {""};
    struct stat st;
    if (fs->options.no_state || guess_path(fs, path, &err) < 0)
        return;
    int fd = efs_regular_open_path(path, &st, &err);
    if (fd == -ENOENT)
        return;
    if (fd < 0) {
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s", err.text);
        return;
    }
    errint_t rc = guess_read(fs, fd, (uint64_t)st.st_size, predictor);
    efs_sys_close(fd);
    if (rc == -EINVAL)
        efs_log(fs, EFS_LOG_INFO, "guesses begin anew: %s is of another store or predictor", path);
    else if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s: %s", path,
                rc == -EUCLEAN ? "damaged; it is replaced when the store is closed" : strerror(-rc));
}
