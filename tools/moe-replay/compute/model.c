/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include "read_wait.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX (1u << 20)
#define TENSORS_MAX 16u /* of an expert whose matrices are looked for */

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

/* The matrices that the header of an expert's file lists. */
static uint32_t hidden_of(const json_t *header)
{
    struct efs_tensor tensors[TENSORS_MAX];
    struct replay_ffn_matrices m;
    uint32_t count = 0;
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)header, name, entry)
    {
        json_int_t rows, columns;
        const char *dtype;
        if (count < TENSORS_MAX &&
            json_unpack(entry, "{s:s, s:[I,I!]}", "dtype", &dtype, "shape", &rows, &columns) == 0 &&
            strcmp(dtype, "BF16") == 0)
            tensors[count++] = (struct efs_tensor){
                .name = name, .dtype = EFS_DTYPE_BF16, .dims = 2, .shape = {(uint64_t)rows, (uint64_t)columns}};
    }
    return replay_ffn_find(tensors, count, &m) ? (uint32_t)m.gate->shape[1] : 0;
}

/* 0: an expert's file has no such matrices, or the view is hidden. */
static uint32_t read_hidden(struct efs *fs, uint32_t file)
{
    uint8_t word[8];
    uint64_t length = 0;
    uint32_t hidden = 0;
    if (file == UINT32_MAX || tools_read_wait(fs, file, NULL, 0, word, sizeof(word)) < 0)
        return 0;
    for (unsigned i = 0; i < 8; i++)
        length |= (uint64_t)word[i] << (8 * i);
    char *text = length <= HEADER_MAX ? malloc(length + 1) : NULL;
    if (text && tools_read_wait(fs, file, NULL, 8, text, length) == 0) {
        json_t *header = json_loadb(text, length, 0, NULL);
        hidden = header ? hidden_of(header) : 0;
        json_decref(header);
    }
    free(text);
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
        char *end = strrchr(info.name, '-'); /* "L03", of several stacks "encoder-L03" */
        *(end ? end : info.name) = '\0';
        rc = replay_model_add(m, info.name, info.layer, info.expert, path, err);
        m->expert_bytes = info.raw_bytes > m->expert_bytes ? info.raw_bytes : m->expert_bytes;
        if (i == 0)
            m->hidden = read_hidden(fs, info.file);
    }
    return rc == 0 ? replay_model_check(m, count, path, err) : rc;
}
