/* SPDX-License-Identifier: Apache-2.0 */
/* info_checkpoint.c - see info_checkpoint.h. */
#include "info_checkpoint.h"

#include "catalog.h"
#include "expertfs-private.h"
#include "reclaim_unfinished.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

bool ctl_is_checkpoint(const char *path)
{
    struct stat st;
    char magic[4] = "";
    const char *end = strrchr(path, '.');
    if (stat(path, &st) < 0)
        return false;
    int fd = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool gguf = fd >= 0 && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (fd >= 0)
        close(fd);
    return S_ISDIR(st.st_mode) || gguf || (end && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".gguf") == 0));
}

/* -ESTALE: a file was removed. */
static errint_t catalog_key(const struct efs_catalog *catalog, uint64_t *key, struct efs_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    errint_t rc = state ? 0 : efs_fail(err, -ENOMEM, "no memory");
    if (state)
        XXH3_64bits_reset(state);
    for (size_t f = 0; f < catalog->file_count && rc == 0; f++) {
        char *path;
        struct stat st;
        int bytes = asprintf(&path, "%s/%s", catalog->root, catalog->files[f].path);
        if (bytes < 0) {
            rc = efs_fail(err, -ENOMEM, "no memory");
            break;
        }
        if (stat(path, &st) < 0)
            rc = efs_fail(err, -ESTALE, "%s: %s", path, strerror(errno));
        const int64_t facts[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        XXH3_64bits_update(state, path, (size_t)bytes + 1);
        XXH3_64bits_update(state, facts, sizeof(facts));
        free(path);
    }
    *key = rc == 0 ? XXH3_64bits_digest(state) : 0;
    XXH3_freeState(state);
    return rc;
}

errint_t ctl_checkpoint_read(const char *path, struct ctl_checkpoint *checkpoint, struct efs_error *err)
{
    struct efs_catalog catalog;
    struct efs_error taken;
    double coded = 0, saved = 0;
    errint_t rc = efs_pack_check(path, err); /* refuses an incomplete checkpoint, whose sizes would be wrong */
    if (rc == 0)
        rc = efs_catalog_read(path, NULL, &catalog, err);
    if (rc < 0) {
        if (tools_reclaim_unfinished(path, NULL, &taken) < 0)
            *err = taken;
        return rc;
    }
    *checkpoint = (struct ctl_checkpoint){.files = catalog.file_count, .experts = catalog.expert_count};
    snprintf(checkpoint->family, sizeof(checkpoint->family), "%s", catalog.family ? catalog.family : "?");
    for (size_t f = 0; f < catalog.file_count; f++)
        checkpoint->source_bytes += catalog.files[f].bytes;
    for (size_t t = 0; t < catalog.tensor_count; t++) {
        const struct efs_source_tensor *tensor = &catalog.tensors[t];
        saved += (double)tensor->bytes * (1 - efs_pack_ratio(tensor->dtype));
        if (tensor->tensor_class == EFS_CLASS_DENSE)
            continue;
        checkpoint->expert_raw_bytes += tensor->bytes;
        coded += (double)tensor->bytes * efs_pack_ratio(tensor->dtype);
    }
    checkpoint->expert_coded_bytes = (uint64_t)coded;
    checkpoint->store_bytes = checkpoint->source_bytes - (uint64_t)saved;
    for (size_t e = 0; e < catalog.expert_count; e++) { /* sorted by stack, layer, number */
        const struct efs_source_expert *now = &catalog.experts[e], *before = e ? now - 1 : NULL;
        checkpoint->layers += !before || before->layer != now->layer || strcmp(before->stack, now->stack) != 0;
    }
    efs_pack_warn_dense(&catalog, "served", checkpoint->warning, sizeof(checkpoint->warning));
    bool alone = strcmp(catalog.root, path) != 0; /* a file, whose name the caller prints */
    for (size_t f = 0; f < catalog.file_count && !catalog.tensor_count && !*checkpoint->warning; f++)
        if (catalog.files[f].note)
            snprintf(checkpoint->warning, sizeof(checkpoint->warning), "%.800s; served as plain bytes, without experts",
                     catalog.files[f].note + (alone ? strlen(catalog.files[f].path) + 2 : 0));
    rc = catalog_key(&catalog, &checkpoint->key, err);
    efs_catalog_free(&catalog);
    return rc;
}
