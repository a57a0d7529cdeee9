/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the names of the mount: directories and files, from a flat list of paths, fixed once it is built.
 *
 * A node is found by its index; index 0 is the root. The children of a directory are neighbours, sorted by name
 * (bytes), so that a look-up is a binary search and a directory position is an index. 20,000 files take about 75
 * bytes each, names included. Nothing here knows FUSE or the engine.
 */
#ifndef EFSD_TREE_H
#define EFSD_TREE_H

#include "expertfs.h"

enum efsd_kind {
    EFSD_DIRECTORY,
    EFSD_FILE,    /* bytes of the checkpoint or of the view; id = the engine's file number */
    EFSD_EXPERT,  /* the same, and it can be leased; expert = the expert's number */
    EFSD_CONTROL, /* text made when it is opened; id = enum efsd_control */
};

struct efsd_node {
    uint64_t bytes;  /* a file's size */
    uint32_t name;   /* offset of the name in the text, not terminated */
    uint32_t parent; /* the root is its own parent */
    uint32_t first;  /* directories: the first child */
    uint32_t count;  /* directories: how many children */
    uint32_t id;     /* files: see the kinds; directories: how many of the children are directories */
    uint32_t expert; /* EFSD_EXPERT, else UINT32_MAX */
    uint16_t name_bytes;
    uint8_t kind; /* enum efsd_kind */
};

struct efsd_entry; /* a path that waits to be built */

struct efsd_tree {
    struct efsd_node *nodes;
    uint32_t count;
    char *text; /* all paths */
    uint64_t text_bytes;
    struct efsd_entry *entries; /* until it is built */
    uint64_t text_room;
    uint32_t entry_count, entry_room;
    size_t part_count; /* of all paths: no more nodes than that, and the root */
};

#define EFSD_ROOT 0u
#define EFSD_NAME_MAX 255u

/* Zero *tree first. Add a file; parts of path are separated by '/'. -EINVAL: a path that no directory can hold (empty
 * parts, "." or "..", a part over 255 bytes, a leading or trailing '/'); -ENOMEM. */
errint_t efsd_tree_add(struct efsd_tree *tree, const char *path, enum efsd_kind kind, uint32_t id, uint32_t expert,
                       uint64_t bytes);
/* Sort what was added into nodes. -EEXIST with the path in err: a name twice, or a file that is a directory too. */
errint_t efsd_tree_build(struct efsd_tree *tree, struct efs_error *err);
void efsd_tree_free(struct efsd_tree *tree);

/* The child of directory by name; false when there is none. */
bool efsd_tree_find(const struct efsd_tree *tree, uint32_t directory, const char *name, size_t name_bytes,
                    uint32_t *node);
/* Bytes that the tree holds in memory. */
uint64_t efsd_tree_bytes(const struct efsd_tree *tree);

/* A hash of which file each node is: names, sizes and numbers. seed: the hash of the files' contents. */
uint64_t efsd_tree_hash(const struct efsd_tree *tree, uint64_t seed);

#endif
