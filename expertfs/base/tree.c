/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - see tree.h. */
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct efsd_entry {
    uint64_t bytes;
    uint32_t path;
    uint32_t id, expert;
    uint16_t path_bytes;
    uint8_t kind;
};

/* False: not a valid path. *parts: number of its parts. */
static bool path_is_sound(const char *path, size_t bytes, size_t *parts)
{
    *parts = 0;
    if (bytes == 0 || bytes > UINT16_MAX)
        return false;
    size_t start = 0;
    for (size_t i = 0; i <= bytes; i++) {
        if (i < bytes && path[i] != '/')
            continue;
        size_t part = i - start;
        const char *name = path + start;
        if (part == 0 || part > EFSD_NAME_MAX || (part == 1 && name[0] == '.') ||
            (part == 2 && name[0] == '.' && name[1] == '.'))
            return false;
        start = i + 1;
        ++*parts;
    }
    return true;
}

static errint_t tree_reserve(struct efsd_tree *tree, size_t path_bytes)
{
    if (tree->entry_count == tree->entry_room) {
        uint32_t room = tree->entry_room ? tree->entry_room * 2 : 64;
        struct efsd_entry *entries = reallocarray(tree->entries, room, sizeof(*entries));
        if (!entries)
            return -ENOMEM;
        tree->entries = entries;
        tree->entry_room = room;
    }
    if (tree->text_bytes + path_bytes > UINT32_MAX || tree->entry_count >= UINT32_MAX / 2)
        return -ENOMEM;
    if (tree->text_bytes + path_bytes > tree->text_room) {
        uint64_t room = (tree->text_bytes + path_bytes) * 2;
        char *text = realloc(tree->text, room);
        if (!text)
            return -ENOMEM;
        tree->text = text;
        tree->text_room = room;
    }
    return 0;
}

errint_t efsd_tree_add(struct efsd_tree *tree, const char *path, enum efsd_kind kind, uint32_t id, uint32_t expert,
                       uint64_t bytes)
{
    size_t path_bytes = strlen(path), parts;
    if (!path_is_sound(path, path_bytes, &parts))
        return -EINVAL;
    errint_t rc = tree_reserve(tree, path_bytes);
    if (rc)
        return rc;
    memcpy(tree->text + tree->text_bytes, path, path_bytes);
    tree->entries[tree->entry_count++] = (struct efsd_entry){
        .bytes = bytes,
        .path = (uint32_t)tree->text_bytes,
        .path_bytes = (uint16_t)path_bytes,
        .id = id,
        .expert = expert,
        .kind = (uint8_t)kind,
    };
    tree->text_bytes += path_bytes;
    tree->part_count += parts;
    return 0;
}

/* Sort order that makes the entries of each directory adjacent: '/' sorts before every other byte. */
static int compare_entries(const void *a, const void *b, void *text_arg)
{
    const struct efsd_entry *x = a, *y = b;
    const char *text = text_arg;
    const char *p = text + x->path, *q = text + y->path;
    size_t n = x->path_bytes < y->path_bytes ? x->path_bytes : y->path_bytes;
    size_t i = 0;
    while (i + sizeof(uint64_t) <= n && memcmp(p + i, q + i, sizeof(uint64_t)) == 0)
        i += sizeof(uint64_t); /* adjacent entries share most of their path */
    for (; i < n; i++) {
        if (p[i] != q[i]) {
            unsigned c = p[i] == '/' ? 0 : (unsigned char)p[i];
            unsigned d = q[i] == '/' ? 0 : (unsigned char)q[i];
            return c < d ? -1 : 1;
        }
    }
    return x->path_bytes < y->path_bytes ? -1 : x->path_bytes > y->path_bytes;
}

/* Length of the part of entry's path that starts at byte depth. */
static size_t entry_part_bytes(const char *text, const struct efsd_entry *entry, size_t depth)
{
    const char *part = text + entry->path + depth;
    size_t left = entry->path_bytes - depth;
    const char *slash = memchr(part, '/', left);
    return slash ? (size_t)(slash - part) : left;
}

static errint_t entry_fail_twice(const struct efsd_tree *tree, const struct efsd_entry *entry, struct efs_error *err)
{
    return efs_fail(err, -EEXIST, "the store has the path \"%.*s\" twice, or as a file and as a directory",
                    (int)entry->path_bytes, tree->text + entry->path);
}

/*
 * Appends the children of the directory at index `at`. On entry its first and count are the range of entries below it,
 * and its bytes is the length of their common prefix. Each child is a run of entries with the same part at this depth.
 */
static errint_t tree_add_children(struct efsd_tree *tree, uint32_t at, struct efs_error *err)
{
    struct efsd_node *directory = &tree->nodes[at];
    const uint32_t to = directory->first + directory->count;
    const size_t depth = directory->bytes;
    uint32_t i = directory->first;
    directory->first = tree->count;
    directory->count = 0;
    directory->bytes = 0;
    while (i < to) {
        const struct efsd_entry *entry = &tree->entries[i];
        const char *name = tree->text + entry->path + depth;
        size_t bytes = entry_part_bytes(tree->text, entry, depth);
        bool is_file = depth + bytes == entry->path_bytes;
        uint32_t end = i + 1;
        while (end < to && entry_part_bytes(tree->text, &tree->entries[end], depth) == bytes &&
               memcmp(tree->text + tree->entries[end].path + depth, name, bytes) == 0)
            end++;
        if (is_file && end - i > 1)
            return entry_fail_twice(tree, entry, err);
        struct efsd_node *node = &tree->nodes[tree->count];
        *node = (struct efsd_node){
            .name = entry->path + (uint32_t)depth,
            .name_bytes = (uint16_t)bytes,
            .parent = at,
            .kind = EFSD_DIRECTORY,
            .expert = UINT32_MAX,
        };
        if (is_file) {
            node->kind = entry->kind;
            node->id = entry->id;
            node->expert = entry->expert;
            node->bytes = entry->bytes;
        } else {
            directory->id++;
            node->first = i;
            node->count = end - i;
            node->bytes = depth + bytes + 1;
        }
        tree->count++;
        directory->count++;
        i = end;
    }
    return 0;
}

errint_t efsd_tree_build(struct efsd_tree *tree, struct efs_error *err)
{
    if (tree->entry_count)
        qsort_r(tree->entries, tree->entry_count, sizeof(*tree->entries), compare_entries, tree->text);
    tree->nodes = calloc(1 + tree->part_count, sizeof(*tree->nodes)); /* upper bound, shrunk below */
    if (!tree->nodes)
        return efs_fail(err, -ENOMEM, "no memory for the names of %u files", tree->entry_count);
    tree->nodes[EFSD_ROOT] =
        (struct efsd_node){.kind = EFSD_DIRECTORY, .expert = UINT32_MAX, .count = tree->entry_count};
    tree->count = 1;
    errint_t rc = 0;
    for (uint32_t at = 0; at < tree->count && !rc; at++)
        if (tree->nodes[at].kind == EFSD_DIRECTORY)
            rc = tree_add_children(tree, at, err);
    if (rc)
        return rc;
    free(tree->entries);
    tree->entries = NULL;
    tree->entry_room = 0;
    char *text = realloc(tree->text, tree->text_bytes ? tree->text_bytes : 1);
    tree->text = text ? text : tree->text;
    struct efsd_node *nodes = reallocarray(tree->nodes, tree->count, sizeof(*nodes));
    tree->nodes = nodes ? nodes : tree->nodes;
    return 0;
}

void efsd_tree_free(struct efsd_tree *tree)
{
    free(tree->nodes);
    free(tree->text);
    free(tree->entries);
    *tree = (struct efsd_tree){0};
}

bool efsd_tree_find(const struct efsd_tree *tree, uint32_t directory, const char *name, size_t name_bytes,
                    uint32_t *node)
{
    const struct efsd_node *parent = &tree->nodes[directory];
    if (parent->kind != EFSD_DIRECTORY)
        return false;
    uint32_t low = parent->first, high = parent->first + parent->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct efsd_node *child = &tree->nodes[middle];
        size_t n = child->name_bytes < name_bytes ? child->name_bytes : name_bytes;
        int order = memcmp(tree->text + child->name, name, n);
        if (order == 0 && child->name_bytes == name_bytes) {
            *node = middle;
            return true;
        }
        if (order < 0 || (order == 0 && child->name_bytes < name_bytes))
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

uint64_t efsd_tree_bytes(const struct efsd_tree *tree)
{
    return (uint64_t)tree->count * sizeof(*tree->nodes) + tree->text_bytes;
}

uint64_t efsd_tree_hash(const struct efsd_tree *tree, uint64_t seed)
{
    uint64_t hash = seed;
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct efsd_node *node = &tree->nodes[i];
        const uint64_t fields[] = {node->kind, node->parent, node->id, node->expert, node->bytes};
        hash = XXH3_64bits_withSeed(fields, sizeof(fields), hash);
        hash = XXH3_64bits_withSeed(tree->text + node->name, node->name_bytes, hash);
    }
    return hash;
}
