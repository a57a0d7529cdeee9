/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool replay_ffn_find(const struct efs_tensor *tensors, uint32_t count, struct replay_ffn_matrices *m)
{
    static const char *const ends[3][2] = {
        {".gate_proj.weight", ".w1.weight"}, {".up_proj.weight", ".w3.weight"}, {".down_proj.weight", ".w2.weight"}};
    const struct efs_tensor *found[3] = {NULL, NULL, NULL};
    for (uint32_t t = 0; t < count; t++)
        for (unsigned role = 0; role < 3; role++)
            for (unsigned i = 0; i < 2; i++) {
                size_t bytes = strlen(tensors[t].name), end = strlen(ends[role][i]);
                if (tensors[t].dtype == EFS_DTYPE_BF16 && tensors[t].dims == 2 && bytes >= end &&
                    strcmp(tensors[t].name + bytes - end, ends[role][i]) == 0)
                    found[role] = &tensors[t];
            }
    *m = (struct replay_ffn_matrices){found[0], found[1], found[2]};
    return m->gate && m->up && m->down && m->gate->shape[1] <= UINT32_MAX && m->gate->shape[0] <= UINT32_MAX &&
           m->up->shape[0] == m->gate->shape[0] && m->up->shape[1] == m->gate->shape[1] &&
           m->down->shape[0] == m->gate->shape[1] && m->down->shape[1] == m->gate->shape[0];
}

/* ---- layers ------------------------------------------------------------------------------------------------- */

errint_t replay_model_add(struct replay_model *m, const char *stack, uint32_t layer, uint32_t expert, const char *path,
                          struct efs_error *err)
{
    struct replay_layer *last = m->layers ? &m->layer[m->layers - 1] : NULL;
    if (!last || last->number != layer || strcmp(last->stack, stack) != 0) {
        struct replay_layer *more = reallocarray(m->layer, m->layers + 1, sizeof(*more));
        if (!more)
            return efs_fail(err, -ENOMEM, "no memory");
        m->layer = more;
        m->layer[m->layers].number = layer;
        snprintf(m->layer[m->layers++].stack, sizeof(more->stack), "%s", stack);
    }
    if (m->layers == 1)
        m->experts++;
    bool fits = expert < m->experts && (m->layers > 1 || expert + 1 == m->experts);
    return fits ? 0 : efs_fail(err, -EOPNOTSUPP, "%s: its layers have different numbers of experts", path);
}

errint_t replay_model_check(const struct replay_model *m, uint64_t experts, const char *path, struct efs_error *err)
{
    if (experts == 0)
        return efs_fail(err, -ENOENT, "%s: no experts", path);
    return experts == (uint64_t)m->layers * m->experts
               ? 0
               : efs_fail(err, -EOPNOTSUPP, "%s: its layers have different numbers of experts", path);
}

void replay_model_free(struct replay_model *m)
{
    free(m->layer);
    *m = (struct replay_model){0};
}

/* ---- a store ------------------------------------------------------------------------------------------------ */

/* Columns of the gate of the layer's first expert; 0: no BF16 SwiGLU matrices, or the read failed. */
static uint32_t read_hidden(struct efs *fs, const struct replay_layer *layer)
{
    const struct efs_need first = {0, 1};
    const struct efs_tensor *tensors;
    struct replay_ffn_matrices matrices;
    struct efs_client *client = NULL;
    struct efs_client_request *request = NULL;
    struct efs_error err = {""};
    uint32_t count, hidden = 0;
    if (efs_client_new(fs, &client, &err) == 0 &&
        efs_client_begin(client, layer->stack, layer->number, &first, 1, EFS_FORM_FULL, &request, &err) == 0 &&
        efs_client_wait(request) == 0 && efs_client_tensors(request, 0, &tensors, &count) == 0 &&
        replay_ffn_find(tensors, count, &matrices))
        hidden = (uint32_t)matrices.gate->shape[1];
    efs_client_release(request);
    efs_client_close(client);
    return hidden;
}

errint_t replay_model_of_store(struct efs *fs, const char *path, struct replay_model *m, struct efs_error *err)
{
    uint32_t count = efs_expert_count(fs);
    errint_t rc = 0;
    *m = (struct replay_model){0};
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct efs_expert_info info;
        rc = efs_expert_info(fs, efs_id(i), &info);
        if (rc < 0)
            return efs_fail(err, rc, "%s: %s", path, strerror(-rc));
        *strchrnul(info.name, '/') = '\0';
        char *end = strrchr(info.name, '-'); /* "L03", or "encoder-L03" with several stacks */
        *(end ? end : info.name) = '\0';
        rc = replay_model_add(m, info.name, info.layer, info.expert, path, err);
        m->expert_bytes = info.raw_bytes > m->expert_bytes ? info.raw_bytes : m->expert_bytes;
        if (rc == 0 && i == 0)
            m->hidden = read_hidden(fs, m->layer);
    }
    return rc == 0 ? replay_model_check(m, count, path, err) : rc;
}
