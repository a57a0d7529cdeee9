/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the mount: lookup, order, counts, paths that are refused, memory for 20,000 experts. */

#include "test.h"
#include "tree.h"

static void add(struct efsd_tree *tree, const char *path, uint32_t id)
{
    assert_int_equal(efsd_tree_add(tree, path, EFSD_FILE, id, UINT32_MAX, 100 + id), 0);
}

static uint32_t find(const struct efsd_tree *tree, uint32_t directory, const char *name)
{
    uint32_t node = UINT32_MAX;
    assert_true(efsd_tree_find(tree, directory, name, strlen(name), &node));
    return node;
}

static bool has(const struct efsd_tree *tree, uint32_t directory, const char *name)
{
    uint32_t node;
    return efsd_tree_find(tree, directory, name, strlen(name), &node);
}

TEST(finds_added_paths)
{
    struct efsd_tree tree = {0};
    add(&tree, "model.safetensors", 0);
    add(&tree, "a/b/c/deep", 1);
    add(&tree, "a/b.txt", 2);
    add(&tree, "a-b", 3); /* '-' sorts before '/': neighbours must stay together */
    add(&tree, "a/b/x", 4);
    add(&tree, "config.json", 5);
    add(&tree, "\xc3\xa9t\xc3\xa9", 6);
    assert_int_equal(efsd_tree_build(&tree, NULL), 0);
    assert_int_equal(tree.count, 1 + 7 + 3);
    const struct efsd_node *root = &tree.nodes[EFSD_ROOT];
    assert_int_equal(root->count, 5);
    assert_int_equal(root->id, 1);
    assert_int_equal(root->parent, EFSD_ROOT);
    uint32_t a = find(&tree, EFSD_ROOT, "a"), b = find(&tree, a, "b");
    assert_int_equal(tree.nodes[a].kind, EFSD_DIRECTORY);
    assert_int_equal(tree.nodes[a].count, 2);
    assert_int_equal(tree.nodes[a].parent, EFSD_ROOT);
    assert_int_equal(tree.nodes[b].parent, a);
    uint32_t deep = find(&tree, find(&tree, b, "c"), "deep");
    assert_int_equal(tree.nodes[deep].id, 1);
    assert_int_equal(tree.nodes[deep].bytes, 101);
    assert_int_equal(tree.nodes[find(&tree, EFSD_ROOT, "a-b")].id, 3);
    assert_int_equal(tree.nodes[find(&tree, EFSD_ROOT, "\xc3\xa9t\xc3\xa9")].id, 6);
    assert_int_equal(tree.nodes[find(&tree, a, "b.txt")].id, 2);
    assert_false(has(&tree, EFSD_ROOT, "b"));
    assert_false(has(&tree, EFSD_ROOT, "config.jso"));
    assert_false(has(&tree, EFSD_ROOT, "config.json2"));
    assert_false(has(&tree, EFSD_ROOT, ""));
    assert_false(has(&tree, deep, "x")); /* a file has no children */
    efsd_tree_free(&tree);
}

TEST(children_are_contiguous_and_sorted)
{
    struct efsd_tree tree = {0};
    char path[64];
    for (uint32_t i = 0; i < 1000; i++) { /* in shuffled order */
        uint32_t k = i * 617 % 1000;
        snprintf(path, sizeof(path), "d%u/f%u", k % 7, k);
        add(&tree, path, k);
    }
    assert_int_equal(efsd_tree_build(&tree, NULL), 0);
    assert_int_equal(tree.nodes[EFSD_ROOT].count, 7);
    uint32_t files = 0;
    for (uint32_t at = 0; at < tree.count; at++) {
        const struct efsd_node *node = &tree.nodes[at];
        if (node->kind != EFSD_DIRECTORY) {
            files++;
            continue;
        }
        for (uint32_t i = 1; i < node->count; i++) {
            const struct efsd_node *x = &tree.nodes[node->first + i - 1], *y = &tree.nodes[node->first + i];
            size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
            int order = memcmp(tree.text + x->name, tree.text + y->name, n);
            assert_true(order < 0 || (order == 0 && x->name_bytes < y->name_bytes));
            assert_int_equal(y->parent, at);
        }
    }
    assert_int_equal(files, 1000);
    for (uint32_t k = 0; k < 1000; k++) {
        char directory[16], name[16];
        snprintf(directory, sizeof(directory), "d%u", k % 7);
        snprintf(name, sizeof(name), "f%u", k);
        assert_int_equal(tree.nodes[find(&tree, find(&tree, EFSD_ROOT, directory), name)].id, k);
    }
    efsd_tree_free(&tree);
}

TEST(empty_tree_is_a_root)
{
    struct efsd_tree tree = {0};
    assert_int_equal(efsd_tree_build(&tree, NULL), 0);
    assert_int_equal(tree.count, 1);
    assert_int_equal(tree.nodes[EFSD_ROOT].count, 0);
    assert_false(has(&tree, EFSD_ROOT, "x"));
    efsd_tree_free(&tree);
}

TEST(invalid_paths_are_refused)
{
    char name256[257], name255[256];
    memset(name256, 'n', 256);
    name256[256] = '\0';
    memset(name255, 'n', 255);
    name255[255] = '\0';
    const char *bad[] = {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", name256};
    struct efsd_tree tree = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(efsd_tree_add(&tree, bad[i], EFSD_FILE, 0, UINT32_MAX, 0), -EINVAL);
    add(&tree, name255, 1);
    add(&tree, "...", 2);
    add(&tree, ".hidden", 3);
    assert_int_equal(efsd_tree_build(&tree, NULL), 0);
    assert_int_equal(tree.count, 4);
    assert_true(has(&tree, EFSD_ROOT, name255));
    efsd_tree_free(&tree);
}

TEST(collisions_are_refused)
{
    static const char *const pairs[][2] = {{"a", "a"}, {"a", "a/b"}, {"x/y/z", "x/y"}, {"x/y", "x/y"}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        struct efsd_tree tree = {0};
        struct efs_error err = {.text = ""};
        add(&tree, pairs[i][0], 0);
        add(&tree, "other", 1);
        add(&tree, pairs[i][1], 2);
        assert_int_equal(efsd_tree_build(&tree, &err), -EEXIST);
        assert_non_null(strchr(err.text, '"'));
        efsd_tree_free(&tree);
    }
}

TEST(twenty_thousand_experts_are_small)
{
    struct efsd_tree tree = {0};
    char path[64];
    for (uint32_t i = 0; i < 20000; i++) {
        snprintf(path, sizeof(path), "experts/L%02u/E%03u.safetensors", i / 256, i % 256);
        assert_int_equal(efsd_tree_add(&tree, path, EFSD_EXPERT, i, i, 1u << 20), 0);
    }
    assert_int_equal(efsd_tree_build(&tree, NULL), 0);
    assert_true(efsd_tree_bytes(&tree) <= 20000 * 100);
    uint32_t layer = find(&tree, find(&tree, EFSD_ROOT, "experts"), "L78");
    assert_int_equal(tree.nodes[layer].count, 20000 - 78 * 256);
    const struct efsd_node *expert = &tree.nodes[find(&tree, layer, "E031.safetensors")];
    assert_int_equal(expert->expert, 78 * 256 + 31);
    assert_int_equal(expert->kind, EFSD_EXPERT);
    efsd_tree_free(&tree);
}

TEST_MAIN(NULL, NULL)
