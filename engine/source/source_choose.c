/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_choose.c - chooses one of several models in a checkpoint: it may contain a draft model, the original format,
 * or several quantisations. Only the chosen model has experts; files of the other models are packed as dense, with a
 * note.
 *
 * A directory with a config.json or a model.safetensors.index.json is a model, and so are the top directory, a GGUF
 * file, and all parts of a split GGUF file. The files of a model with an index (of any name) are those that it names.
 * The files of a model without an index are those next to its config.json, or only model.safetensors if that exists,
 * because an adapter or another format may be stored there, too; or all, if no file with tensors is next to
 * config.json. The chosen model is the one with experts and the smallest directory depth; among several, the one with
 * the most bytes of experts.
 */
#include "source.h"

#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

struct model {
    const char *path; /* path of its first file */
    size_t key_bytes; /* prefix of path that identifies the model: the directory with its slash, or a GGUF file name
                         without its part number */
    bool gguf;
    bool config, beside; /* has a config.json; has files with tensors in the same directory */
    bool single;         /* one of those is model.safetensors */
    uint32_t index;      /* an index whose files all exist; EFS_NONE: none */
    uint64_t bytes;      /* of tensors with expert names, in the model's files */
    uint32_t first_file;
    bool others; /* has experts in files that do not count as the model's */
};

struct member {
    uint32_t file;
    size_t key_bytes;
};

struct choice {
    struct efs_catalog *catalog;
    const uint64_t *expert_bytes; /* for each file */
    struct member *members;       /* files with tensors, grouped by model */
    size_t member_count;
    struct model *models;
    uint32_t *model_of; /* for each member */
    uint32_t model_count;
};

static bool folder_has(const struct efs_catalog *catalog, const char *path, size_t folder_bytes, const char *name)
{
    char *whole = NULL;
    bool found = asprintf(&whole, "%.*s%s", (int)folder_bytes, path, name) >= 0 && efs_source_find(catalog, whole);

    free(whole);
    return found;
}

/* Length of the path's prefix that identifies its model. */
static size_t model_key(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    struct efs_source_part part;

    if (file->gguf)
        return efs_source_part(file->path, &part) ? (size_t)part.prefix_bytes : strlen(file->path);
    for (size_t bytes = efs_source_folder(file->path); bytes > 0;) {
        if (folder_has(catalog, file->path, bytes, "config.json") || folder_has(catalog, file->path, bytes, INDEX_NAME))
            return bytes;
        for (bytes--; bytes > 0 && file->path[bytes - 1] != '/';)
            bytes--;
    }
    return 0;
}

static int compare_members(const void *pa, const void *pb, void *arg)
{
    const struct efs_catalog *catalog = arg;
    const struct member *a = pa, *b = pb;
    const struct efs_source_file *x = &catalog->files[a->file], *y = &catalog->files[b->file];

    if (x->gguf != y->gguf)
        return x->gguf ? 1 : -1;
    int order = memcmp(x->path, y->path, a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes);
    if (order)
        return order;
    if (a->key_bytes != b->key_bytes)
        return a->key_bytes < b->key_bytes ? -1 : 1;
    return a->file < b->file ? -1 : a->file > b->file;
}

/* Finds the index of a model, preferably the one of the usual name. */
static void find_index(const struct efs_catalog *catalog, struct model *model)
{
    for (uint32_t f = 0; f < catalog->file_count && !model->gguf; f++) {
        const char *path = catalog->files[f].path;
        if (catalog->files[f].names_all && efs_source_folder(path) == model->key_bytes &&
            memcmp(path, model->path, model->key_bytes) == 0 &&
            (model->index == EFS_NONE || strcmp(path + model->key_bytes, INDEX_NAME) == 0))
            model->index = f;
    }
}

static bool is_single(const struct model *model, const struct efs_source_file *file)
{
    return strcmp(file->path + model->key_bytes, SINGLE_NAME) == 0;
}

/* Several indexes may name a file: those of nested models, or of one model in two formats. A file named by its
 * model's index is assigned to that index. Nested models are processed after the models that contain them. */
static errint_t assign_indexes(struct choice *choice)
{
    uint32_t indexes = 0;
    errint_t ret = 0;

    for (uint32_t f = 0; f < choice->catalog->file_count; f++)
        indexes += efs_source_is_index(choice->catalog->files[f].path);
    for (uint32_t m = 0; ret == 0 && indexes > 1 && m < choice->model_count; m++)
        if (choice->models[m].index != EFS_NONE)
            ret = efs_source_read_index(choice->catalog, choice->models[m].index);
    return ret;
}

static errint_t find_models(struct choice *choice)
{
    const struct efs_catalog *catalog = choice->catalog;

    for (uint32_t f = 0; f < catalog->file_count; f++)
        if (catalog->files[f].has_tensors)
            choice->members[choice->member_count++] = (struct member){f, model_key(catalog, &catalog->files[f])};
    if (choice->member_count)
        qsort_r(choice->members, choice->member_count, sizeof(*choice->members), compare_members,
                (void *)(uintptr_t)catalog);
    for (size_t m = 0; m < choice->member_count; m++) {
        const struct member *member = &choice->members[m];
        const struct efs_source_file *file = &catalog->files[member->file];
        struct model *model = choice->model_count ? &choice->models[choice->model_count - 1] : NULL;
        if (!model || model->gguf != file->gguf || model->key_bytes != member->key_bytes ||
            memcmp(model->path, file->path, member->key_bytes) != 0) {
            model = &choice->models[choice->model_count++];
            *model = (struct model){.path = file->path,
                                    .key_bytes = member->key_bytes,
                                    .gguf = file->gguf,
                                    .index = EFS_NONE,
                                    .first_file = member->file};
            model->config = !file->gguf && folder_has(catalog, file->path, member->key_bytes, "config.json");
            find_index(catalog, model);
        }
        model->beside |= efs_source_folder(file->path) == model->key_bytes;
        model->single |= model->config && is_single(model, file);
        choice->model_of[m] = choice->model_count - 1;
    }
    return assign_indexes(choice);
}

/* Whether a file counts as one of the model's. */
static bool file_counts(const struct model *model, const struct efs_source_file *file)
{
    if (model->gguf)
        return true;
    if (model->index != EFS_NONE)
        return file->index == model->index;
    if (model->single)
        return is_single(model, file);
    return !model->config || !model->beside || efs_source_folder(file->path) == model->key_bytes;
}

static unsigned model_depth(const struct model *model)
{
    unsigned depth = 0;

    for (size_t i = 0; i < model->key_bytes; i++)
        depth += model->path[i] == '/';
    return depth;
}

static const struct model *model_choose(struct choice *choice)
{
    const struct model *best = NULL;

    for (size_t m = 0; m < choice->member_count; m++) {
        struct model *model = &choice->models[choice->model_of[m]];
        uint32_t file = choice->members[m].file;
        if (file_counts(model, &choice->catalog->files[file]))
            model->bytes += choice->expert_bytes[file];
        else
            model->others |= choice->expert_bytes[file] > 0;
    }
    for (uint32_t m = 0; m < choice->model_count; m++) {
        const struct model *model = &choice->models[m];
        unsigned depth = model_depth(model), best_depth = best ? model_depth(best) : 0;
        if (model->bytes && (!best || depth < best_depth || (depth == best_depth && model->bytes > best->bytes)))
            best = model;
    }
    return best;
}

/* Sets the note why a file's experts are not used: one for each other model, and one for each file with experts next to
 * the chosen model's that does not count as one of these. */
static errint_t put_note(const struct choice *choice, const struct model *model, bool is_best, uint32_t file)
{
    struct efs_source_file *f = &choice->catalog->files[file];
    struct efs_error text = {""};

    if (f->note)
        return 0;
    if (is_best && choice->expert_bytes[file])
        efs_fail(&text, 0, "%s: %s; packed without experts", f->path,
                 model->index != EFS_NONE                         ? "the index does not name it"
                 : efs_source_folder(f->path) != model->key_bytes ? "does not lie beside config.json"
                                                                  : "the model is " SINGLE_NAME);
    else if (!is_best && file == model->first_file && (model->config || model->bytes || model->others))
        efs_fail(&text, 0, "%.*s: is a model of its own; packed without experts",
                 model->key_bytes ? (int)model->key_bytes - (model->path[model->key_bytes - 1] == '/') : 1,
                 model->key_bytes ? model->path : ".");
    f->note = text.text[0] ? strdup(text.text) : NULL;
    return text.text[0] && !f->note ? -ENOMEM : 0;
}

static errint_t choose(struct choice *choice, uint32_t *index)
{
    errint_t ret = find_models(choice);
    const struct model *best = ret == 0 ? model_choose(choice) : NULL;

    *index = best ? best->index : EFS_NONE;
    for (size_t m = 0; best && ret == 0 && m < choice->member_count; m++) {
        const struct model *model = &choice->models[choice->model_of[m]];
        struct efs_source_file *file = &choice->catalog->files[choice->members[m].file];
        file->other_model = model != best || !file_counts(model, file);
        if (file->other_model)
            ret = put_note(choice, model, model == best, choice->members[m].file);
    }
    return ret;
}

errint_t efs_source_choose_model(struct efs_catalog *catalog, const uint64_t *expert_bytes, uint32_t *index)
{
    struct choice choice = {.catalog = catalog, .expert_bytes = expert_bytes};

    choice.members = efs_sys_calloc(catalog->file_count + 1, sizeof(*choice.members));
    choice.models = efs_sys_calloc(catalog->file_count + 1, sizeof(*choice.models));
    choice.model_of = efs_sys_calloc(catalog->file_count + 1, sizeof(*choice.model_of));
    errint_t ret = choice.members && choice.models && choice.model_of ? choose(&choice, index) : -ENOMEM;
    free(choice.members);
    free(choice.models);
    free(choice.model_of);
    return ret;
}
