/* SPDX-License-Identifier: Apache-2.0 */
/* raw.c - see raw.h. efs_catalog_read() has checked names, sizes and offsets. */
#include "raw.h"

#include "catalog.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of experts that a tensor contains a slice of, starting at expert_first. */
static uint64_t slices_of(const struct efs_source_tensor *t)
{
    return t->tensor_class == EFS_CLASS_EXPERT ? 1 : t->tensor_class == EFS_CLASS_FUSED ? t->shape[0] : 0;
}

/* One expert's slice of a tensor, with its shape in the virtual file of the expert. */
static struct efs_tensor tensor_of(const struct efs_source_tensor *t)
{
    struct efs_tensor out = {.name = t->name, .dtype = t->dtype, .dims = t->dims, .bytes = t->bytes / slices_of(t)};
    memcpy(out.shape, t->shape, t->dims * sizeof(*t->shape));
    if (t->tensor_class == EFS_CLASS_FUSED)
        memmove(out.shape, out.shape + 1, --out.dims * sizeof(*out.shape));
    return out;
}

static errint_t find_tensors(struct replay_raw *raw, struct efs_error *err)
{
    const struct efs_catalog *c = raw->catalog;
    uint64_t count = 0;
    raw->first = calloc(c->expert_count + 2, sizeof(*raw->first));
    if (!raw->first)
        return efs_fail(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < c->tensor_count; i++)
        for (uint64_t slice = 0; slice < slices_of(&c->tensors[i]); slice++, count++)
            raw->first[c->tensors[i].expert_first + slice + 2]++; /* off by one: filling the tensors advances first[] */
    for (size_t u = 0; u < c->expert_count; u++) {
        raw->most_tensors = raw->first[u + 2] > raw->most_tensors ? raw->first[u + 2] : raw->most_tensors;
        raw->first[u + 2] += raw->first[u + 1];
    }
    raw->tensors = calloc(count + 1, sizeof(*raw->tensors));
    raw->places = calloc(count + 1, sizeof(*raw->places));
    if (!raw->tensors || !raw->places)
        return efs_fail(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < c->tensor_count; i++)
        for (uint64_t slice = 0; slice < slices_of(&c->tensors[i]); slice++) {
            const struct efs_source_tensor *t = &c->tensors[i];
            uint32_t at = raw->first[t->expert_first + slice + 1]++;
            raw->tensors[at] = tensor_of(t);
            raw->places[at] = (struct replay_raw_place){t->file, t->offset + slice * raw->tensors[at].bytes};
        }
    return 0;
}

static errint_t find_layers(struct replay_raw *raw, const char *path, struct efs_error *err)
{
    const struct efs_catalog *c = raw->catalog;
    struct replay_model *m = &raw->model;
    struct replay_ffn_matrices matrices;
    errint_t rc = 0;
    for (size_t i = 0; rc == 0 && i < c->expert_count; i++) {
        uint64_t bytes = 0;
        for (uint32_t t = raw->first[i]; t < raw->first[i + 1]; t++)
            bytes += raw->tensors[t].bytes;
        m->expert_bytes = bytes > m->expert_bytes ? bytes : m->expert_bytes;
        rc = replay_model_add(m, c->experts[i].stack, c->experts[i].layer, c->experts[i].expert, path, err);
    }
    if (rc == 0)
        rc = replay_model_check(m, c->expert_count, path, err);
    if (rc == 0 && replay_ffn_find(raw->tensors, raw->first[1], &matrices))
        m->hidden = (uint32_t)matrices.gate->shape[1];
    return rc;
}

errint_t replay_raw_open(const char *path, struct replay_raw *raw, struct efs_error *err)
{
    *raw = (struct replay_raw){.catalog = calloc(1, sizeof(*raw->catalog))};
    if (!raw->catalog)
        return efs_fail(err, -ENOMEM, "no memory");
    const struct efs_catalog *c = raw->catalog;
    errint_t rc = efs_catalog_read(path, NULL, raw->catalog, err);
    if (rc == 0 && !(raw->paths = calloc(c->file_count + 1, sizeof(*raw->paths))))
        rc = efs_fail(err, -ENOMEM, "no memory");
    raw->file_count = rc == 0 ? (uint32_t)c->file_count : 0;
    for (uint32_t i = 0; rc == 0 && i < raw->file_count; i++)
        if (c->files[i].state != EFS_SOURCE_WHOLE) {
            rc = efs_fail(err, -EUCLEAN, "%s: damaged: %s", path, c->files[i].note);
        } else if (c->files[i].has_tensors && asprintf(&raw->paths[i], "%s/%s", c->root, c->files[i].path) < 0) {
            raw->paths[i] = NULL;
            rc = efs_fail(err, -ENOMEM, "no memory");
        }
    if (rc == 0)
        rc = find_tensors(raw, err);
    if (rc == 0)
        rc = find_layers(raw, path, err);
    if (rc < 0)
        replay_raw_close(raw);
    return rc;
}

void replay_raw_close(struct replay_raw *raw)
{
    for (uint32_t i = 0; i < raw->file_count; i++)
        free(raw->paths[i]);
    free(raw->paths);
    free(raw->first);
    free(raw->tensors);
    free(raw->places);
    if (raw->catalog)
        efs_catalog_free(raw->catalog);
    free(raw->catalog);
    replay_model_free(&raw->model);
    *raw = (struct replay_raw){0};
}
