/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the names of the mount: directories and files, built once from a flat list of paths.
 *
 * A node is identified by its index; index 0 is the root. The children of a directory are adjacent and sorted by name
 * (bytes), so a look-up is a binary search and a directory position is an index. 20,000 files take about 75 bytes each,
 * names included. Independent of FUSE and of the engine.
 */
#ifndef EFSD_TREE_H
#define EFSD_TREE_H

#include "expertfs.h"

enum efsd_kind {
    EFSD_DIRECTORY,
    EFSD_FILE,    /* bytes of the checkpoint or of the view; id = the engine's file number */
    EFSD_EXPERT,  /* as EFSD_FILE, and can be leased; expert = the expert's number */
    EFSD_CONTROL, /* text generated at open; id = enum efsd_control */
};

struct efsd_node {
    uint64_t bytes;  /* files: size */
    uint32_t name;   /* offset of the name in the text, not terminated */
    uint32_t parent; /* the root is its own parent */
    uint32_t first;  /* directories: first child */
    uint32_t count;  /* directories: number of children */
    uint32_t id;     /* files: see enum efsd_kind; directories: number of subdirectories */
    uint32_t expert; /* EFSD_EXPERT, else UINT32_MAX */
    uint16_t name_bytes;
    uint8_t kind; /* enum efsd_kind */
};

struct efsd_entry; /* a path added before efsd_tree_build() */

struct efsd_tree {
    struct efsd_node *nodes;
    uint32_t count;
    char *text; /* all paths */
    uint64_t text_bytes;
    struct efsd_entry *entries; /* until efsd_tree_build() */
    uint64_t text_room;
    uint32_t entry_count, entry_room;
    size_t part_count; /* parts of all paths: upper bound of the nodes without the root */
};

#define EFSD_ROOT 0u
#define EFSD_NAME_MAX 255u

/* Adds a file to *tree, which was zero before the first call. Parts of path are separated by '/'. -EINVAL: invalid path
 * (empty parts, "." or "..", a part over 255 bytes, a leading or trailing '/', over 65535 bytes); -ENOMEM. */
errint_t efsd_tree_add(struct efsd_tree *tree, const char *path, enum efsd_kind kind, uint32_t id, uint32_t expert,
                       uint64_t bytes);
/* Builds the nodes from the added paths. -EEXIST with the path in err: a path was added twice, or is both a file and a
 * directory; -ENOMEM. */
errint_t efsd_tree_build(struct efsd_tree *tree, struct efs_error *err);
void efsd_tree_free(struct efsd_tree *tree);

/* Finds the child of directory by name; false: no such child. */
bool efsd_tree_find(const struct efsd_tree *tree, uint32_t directory, const char *name, size_t name_bytes,
                    uint32_t *node);
/* Memory of nodes and names, bytes. */
uint64_t efsd_tree_bytes(const struct efsd_tree *tree);

/* Hash of all nodes: kinds, names, sizes, parents and numbers. seed: the hash of the files' contents. */
uint64_t efsd_tree_hash(const struct efsd_tree *tree, uint64_t seed);

#endif
