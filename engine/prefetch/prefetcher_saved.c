/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher_saved.c - see prefetcher.h: saved predictors in the state directory. A mount saves what its predictor has
 * learned (guesses-HASH.bin); moe-replay saves networks that were trained ahead (networks-HASH.bin). Both files are
 *
 *     0  "EFSLEARN"    8  u64 content hash, little-endian    16  output of efs_predict_save(), with its checksum
 */
#include "prefetcher_internal.h"

#include "expertfs-private.h"
#include "regular.h"
#include "state_file.h"
#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "EFSLEARN"
#define HEADER_BYTES 16u
#define NETWORKS_SHARE 64u /* 1/64 of the budget at most */
#define NETWORKS_LEAST (1u << 20)

static void saved_header(uint64_t content_hash, uint8_t header[HEADER_BYTES])
{
    uint64_t hash = htole64(content_hash);
    memcpy(header, MAGIC, 8);
    memcpy(header + 8, &hash, sizeof(hash));
}

static errint_t saved_write(const char *kind, uint64_t content_hash, const struct efs_predictor *predictor,
                            struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    errint_t rc = efs_state_path(kind, content_hash, "bin", path, sizeof(path), err);
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

/* ---- what a mount has learned ---- */

void efs_prefetcher_save(struct efs *fs, const struct efs_predictor *predictor)
{
    struct efs_error err = {""};
    if (!fs->options.no_state && saved_write("guesses", fs->store->sb.content_hash, predictor, &err) < 0)
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

/* ---- networks ---- */

errint_t efs_networks_save(uint64_t content_hash, const struct efs_predictor *networks, struct efs_error *err)
{
    return saved_write("networks", content_hash, networks, err);
}

/* Reads the config of saved networks. -EUCLEAN: damaged; -EINVAL: for another model; -E2BIG: *config has the size. */
static errint_t networks_config(const struct efs *fs, int fd, uint64_t bytes, uint64_t most_bytes,
                                struct efs_predict_config *config)
{
    uint8_t header[EFS_PREDICT_HEADER_BYTES];
    errint_t rc = bytes < HEADER_BYTES + sizeof(header) ? -EUCLEAN : saved_check(fs, fd, bytes);
    if (rc == 0)
        rc = efs_sys_pread_all(fd, header, sizeof(header), HEADER_BYTES);
    if (rc == 0)
        rc = efs_predict_saved_config(header, sizeof(header), config);
    if (rc < 0)
        return rc;
    if (config->kind != EFS_PREDICT_PROMOE || config->layers != efs_cache(fs)->layers ||
        config->experts != efs_cache(fs)->width || config->distances > EFS_PREFETCHER_DISTANCES ||
        config->sequences != 1 || config->state_width > EFS_ROUTING_STATE || config->memory_bytes == 0)
        return -EINVAL;
    return config->memory_bytes <= most_bytes ? 0 : -E2BIG;
}

static errint_t networks_read(const struct efs *fs, int fd, uint64_t bytes, uint64_t most_bytes,
                              struct efs_predict_config *config, struct efs_predictor **predictor)
{
    errint_t rc = networks_config(fs, fd, bytes, most_bytes, config);
    if (rc == 0)
        rc = efs_predictor_new(config, predictor);
    if (rc == -ENODATA)
        rc = -EINVAL;
    return rc < 0 ? rc : efs_predict_load_from(*predictor, saved_read_piece, &fd, bytes - HEADER_BYTES);
}

static void log_unused(struct efs *fs, const char *path, errint_t rc, uint64_t bytes, uint64_t most_bytes)
{
    if (rc == -E2BIG)
        efs_log(fs, EFS_LOG_WARNING, "networks are not used: %s: they take %llu KiB, of %llu KiB at this budget", path,
                (unsigned long long)(bytes + 1023) >> 10, (unsigned long long)most_bytes >> 10);
    else
        efs_log(fs, EFS_LOG_WARNING, "networks are not used: %s: %s", path,
                rc == -EUCLEAN  ? "damaged"
                : rc == -EINVAL ? "of another model"
                                : strerror(-rc));
}

struct efs_prefetcher_networks efs_prefetcher_load_networks(struct efs *fs, uint64_t budget_bytes)
{
    char path[EFS_STATE_PATH_BYTES];
    uint64_t most_bytes = budget_bytes / NETWORKS_SHARE;
    struct efs_predict_config config = {.memory_bytes = 0};
    struct efs_prefetcher_networks networks = {.predictor = NULL};
    struct efs_error err = {""};
    struct stat st;
    most_bytes = most_bytes > NETWORKS_LEAST ? most_bytes : NETWORKS_LEAST;
    if (fs->options.no_state ||
        efs_state_path("networks", fs->store->sb.content_hash, "bin", path, sizeof(path), &err) < 0)
        return networks;
    int fd = efs_regular_open_path(path, &st, &err);
    if (fd == -ENOENT)
        return networks;
    errint_t rc = fd < 0 ? fd : networks_read(fs, fd, (uint64_t)st.st_size, most_bytes, &config, &networks.predictor);
    if (fd >= 0)
        efs_sys_close(fd);
    if (rc < 0) {
        log_unused(fs, path, rc, config.memory_bytes, most_bytes);
        efs_predictor_free(networks.predictor);
        networks.predictor = NULL;
        return networks;
    }
    networks.width = config.state_width;
    networks.distances = config.distances;
    return networks;
}
