/* SPDX-License-Identifier: Apache-2.0 */
/* source_names.h - finds the expert of a tensor by its name. Used by source_experts.c and source_pattern.c alone. */
#ifndef EFS_SOURCE_NAMES_H
#define EFS_SOURCE_NAMES_H

#include "source.h"

#include <regex.h>

#define EFS_SOURCE_LAYER_MAX 99999u /* a larger number does not match */
#define EFS_SOURCE_EXPERT_MAX 999999u
#define EFS_SOURCE_STACK_BYTES_MAX 31u /* with layer and expert it forms a file name */

/* The first dimension of a tensor counts: nothing of experts; experts; rows of all experts one after the other;
 * experts, if it is that of a fused tensor of the layer (scales of it). */
enum efs_name_kind { EFS_NAME_EXPERT, EFS_NAME_FUSED, EFS_NAME_ROWS, EFS_NAME_SCALES };

struct efs_name_match {
    enum efs_name_kind kind;
    const char *family; /* static */
    /* The family of a checkpoint is that of the smallest rank of its tensors. 0: by an expression. */
    unsigned rank;
    uint32_t layer, expert;
    uint32_t count; /* of SCALES: the experts of the layer's fused tensors; 0: none */
    char stack[EFS_SOURCE_STACK_BYTES_MAX + 1];
};

/* Finds the shortest prefix of whole parts (maybe none) after which a row of the table matches the name, and the first
 * such row. */
bool efs_source_match_name(const char *name, struct efs_name_match *match);
/* Matches the expression of efs_catalog_read(). */
bool efs_source_match_regex(const char *name, const regex_t *regex, struct efs_name_match *match);
/* Parses a decimal number of at most max without leading zeros; returns the text after it, or NULL. */
const char *efs_source_match_number(const char *text, uint32_t max, uint32_t *number);
/* Converts a prefix that is empty or ends with "." to a stack: "model.encoder." to "encoder", "thinker.model." to
 * "thinker". false: not usable in a file name. */
bool efs_source_stack_of(const char *prefix, size_t bytes, char stack[EFS_SOURCE_STACK_BYTES_MAX + 1]);

#define EFS_NAME_RANK_PATTERN 1000u /* of source_pattern.c */

/* The experts of one tensor (count 0: none, the tensor is dense), or one expert. */
struct efs_expert_range {
    const char *family;
    unsigned rank;
    uint32_t stack; /* index into the stacks */
    uint32_t layer, expert, count;
    bool fused, rows; /* the first dimension counts experts, or rows of all of them */
};

struct efs_naming {
    struct efs_catalog *catalog;
    const char *experts;             /* expression of efs_catalog_read(), or NULL */
    struct efs_expert_range *ranges; /* one per tensor */
    struct efs_source_facts **facts; /* one per file */
    char **stacks;
    size_t stack_count, stack_capacity;
    struct efs_expert_range *found; /* one per expert; has duplicates until sorted */
    size_t found_count, found_capacity;
    uint32_t index; /* file of the model's index; EFS_NONE: none */
};

/* Sets the range of a tensor by a match; the range stays empty if the tensor cannot be divided or there are too many
 * stacks. 0 or -ENOMEM. */
errint_t efs_naming_set(struct efs_naming *naming, size_t tensor, const struct efs_name_match *match);
/* Finds experts of models in which no name is known, by the number of experts in their facts. 0 or -ENOMEM. */
errint_t efs_naming_by_count(struct efs_naming *naming);

#endif
