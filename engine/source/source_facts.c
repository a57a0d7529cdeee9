/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_facts.c - the architecture and the number of experts by config.json, Mistral's params.json or GGUF metadata.
 *
 * Names of the number differ (num_experts, num_local_experts, n_routed_experts, moe_num_experts, ...) and so does their
 * depth (text_config, ffn_config, thinker_config.text_config), so all members with such a name count. A file that is
 * not JSON gives no facts.
 */
#include "source.h"

#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (16u << 20)
#define DEPTH_MAX 5u
#define COUNT_MIN 2u
#define COUNT_MAX 65536u

void efs_source_set_architecture(struct efs_source_facts *facts, const char *text, size_t bytes)
{
    if (bytes == 0 || bytes >= sizeof(facts->architecture))
        return;
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_.-", text[i]))
            return;
    memcpy(facts->architecture, text, bytes);
    facts->architecture[bytes] = '\0';
}

void efs_source_add_count(struct efs_source_facts *facts, uint64_t count)
{
    if (count < COUNT_MIN || count > COUNT_MAX || facts->count_count == EFS_SOURCE_COUNTS)
        return;
    for (unsigned i = 0; i < facts->count_count; i++)
        if (facts->counts[i] == count)
            return;
    facts->counts[facts->count_count++] = (uint32_t)count;
}

/* Whether a member has the number of experts of a layer: not of those that are chosen, shared or in a group. */
static bool is_count(const char *name)
{
    static const char *const others[] = {"per",   "shared", "top",    "group", "used",
                                         "activ", "select", "redund", "zero",  "layer"};
    const char *expert = strstr(name, "expert");

    if (!expert || (!strstr(name, "num") && strncmp(name, "n_", 2) != 0))
        return false;
    const char *after = expert + strlen("expert");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strstr(after, others[i]) || memmem(name, (size_t)(expert - name), others[i], strlen(others[i])))
            return false;
    return true;
}

static void add_counts(struct efs_source_facts *facts, const json_t *value)
{
    size_t i;
    json_t *item;

    if (json_is_integer(value) && json_integer_value(value) > 0)
        efs_source_add_count(facts, (uint64_t)json_integer_value(value));
    json_array_foreach(value, i, item)
    { /* one for each kind of token, or for each layer */
        if (json_is_integer(item) && json_integer_value(item) > 0)
            efs_source_add_count(facts, (uint64_t)json_integer_value(item));
    }
}

static void find_counts(struct efs_source_facts *facts, json_t *object, unsigned depth)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        if (is_count(name))
            add_counts(facts, value);
        else if (json_is_object(value) && depth < DEPTH_MAX)
            find_counts(facts, value, depth + 1);
    }
}

static errint_t read_facts(const struct efs_catalog *catalog, struct efs_source_file *file)
{
    struct efs_error ignored;

    file->facts = efs_sys_calloc(1, sizeof(*file->facts));
    if (!file->facts)
        return -ENOMEM;
    json_t *root = efs_source_json(catalog, file, CONFIG_BYTES_MAX, &ignored);
    const json_t *architecture = json_array_get(json_object_get(root, "architectures"), 0);
    if (architecture && json_is_string(architecture))
        efs_source_set_architecture(file->facts, json_string_value(architecture), json_string_length(architecture));
    find_counts(file->facts, root, 0);
    json_decref(root);
    return 0;
}

/* The config.json or params.json in the nearest directory above the file; NULL: none. */
static struct efs_source_file *find_config(const struct efs_catalog *catalog, const char *path)
{
    static const char *const names[] = {"config.json", "params.json"};

    for (size_t bytes = efs_source_folder(path);;) {
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            char *whole = NULL;
            struct efs_source_file *file =
                asprintf(&whole, "%.*s%s", (int)bytes, path, names[i]) >= 0 ? efs_source_find(catalog, whole) : NULL;
            free(whole);
            if (file)
                return file;
        }
        if (bytes == 0)
            return NULL;
        for (bytes--; bytes > 0 && path[bytes - 1] != '/';)
            bytes--;
    }
}

/* Part 1 of a split GGUF file, which has the metadata of the model; else the file itself. */
static const struct efs_source_file *first_part(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    struct efs_source_part part;

    if (!efs_source_part(file->path, &part))
        return file;
    while (file > catalog->files && file[-1].gguf &&
           strncmp(file[-1].path, file->path, (size_t)part.prefix_bytes) == 0 && efs_source_part(file[-1].path, &part))
        file--;
    return file;
}

errint_t efs_source_facts(struct efs_catalog *catalog, uint32_t number, struct efs_source_facts **facts)
{
    const struct efs_source_file *file = &catalog->files[number];
    errint_t ret = 0;

    if (file->gguf) {
        *facts = first_part(catalog, file)->facts;
        return 0;
    }
    struct efs_source_file *config = find_config(catalog, file->path);
    if (config && !config->facts)
        ret = read_facts(catalog, config);
    *facts = config ? config->facts : NULL;
    return ret;
}
