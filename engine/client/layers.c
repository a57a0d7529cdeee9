/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c - see file_layout.h: the rows of the text "layers", each a tensor of a run of experts, as a list of experts.
 */
#include "file_layout.h"

#include "dtype.h"
#include "source.h"
#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS_MAX (1u << 20)
#define LIST_BYTES_MAX (1ull << 30)
#define DIGITS 10u /* of a number of 32 bits */

struct row {
    const char *stack;
    uint64_t layer, first, last, number; /* number: offset of the expert's number in name */
    bool numbered;
    struct efs_tensor tensor;
    char *name;
    size_t name_bytes;
};

/* Takes a word that ends with a blank. NULL: there is none. */
static char *take_word(char **text)
{
    char *word = *text, *end = strchr(word, ' ');
    if (!end || end == word)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return word;
}

static bool parse_number(const char *word, uint64_t max, uint64_t *number)
{
    char *end;
    if (!word || !isdigit((unsigned char)*word))
        return false;
    errno = 0;
    *number = strtoull(word, &end, 10);
    return errno == 0 && *end == '\0' && *number <= max;
}

/* "[768,2048]"; of a type that is not known, "[BYTES]". */
static bool parse_shape(char *word, struct efs_tensor *t)
{
    char *save = NULL, *end = word && *word == '[' ? strchr(word, ']') : NULL;
    if (!end || end[1] != '\0')
        return false;
    *end = '\0';
    for (char *part = strtok_r(word + 1, ",", &save); part; part = strtok_r(NULL, ",", &save))
        if (t->dims == 8 || !parse_number(part, UINT64_MAX, &t->shape[t->dims++]))
            return false;
    if (t->dtype != EFS_DTYPE_NONE)
        return efs_dtype_tensor_bytes(t->dtype, t->dims, t->shape, &t->bytes) == 0;
    t->bytes = t->shape[0];
    return t->dims-- == 1;
}

/* Undoes efs_print_escaped(), in place. */
static size_t unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        const bool escaped = *from == '\\' && from[1];
        from += escaped;
        *to++ = escaped && *from == 'n' ? '\n' : *from;
    }
    *to = '\0';
    return (size_t)(to - text);
}

static bool parse_row(char *line, struct row *row)
{
    char digits[DIGITS + 1];
    char *stack = take_word(&line), *layer = take_word(&line), *first = take_word(&line), *last = take_word(&line),
         *dtype = take_word(&line), *shape = take_word(&line), *number = take_word(&line);
    if (!number || !parse_number(layer, UINT32_MAX, &row->layer) || !parse_number(last, EXPERTS_MAX, &row->last) ||
        !parse_number(first, row->last, &row->first))
        return false;
    row->stack = strcmp(stack, "-") == 0 ? "" : stack;
    row->tensor.dtype = efs_dtype_from_name(dtype, strlen(dtype));
    row->numbered = strcmp(number, "-") != 0;
    row->name = line;
    row->name_bytes = unescape(line);
    if ((row->tensor.dtype == EFS_DTYPE_NONE && strcmp(dtype, "-") != 0) || !parse_shape(shape, &row->tensor) ||
        row->name_bytes == 0 || row->name_bytes > EFS_SOURCE_MAX_NAME)
        return false;
    const size_t n = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, row->first);
    return !row->numbered || (parse_number(number, row->name_bytes, &row->number) &&
                              row->number + n <= row->name_bytes && memcmp(row->name + row->number, digits, n) == 0);
}

static bool is_same_run(const struct row *a, const struct row *b)
{
    return a->layer == b->layer && a->first == b->first && a->last == b->last && strcmp(a->stack, b->stack) == 0;
}

/* The rows after a head, in an array that the caller frees. */
static errint_t parse_rows(char *text, struct row **rows, size_t *count)
{
    size_t lines = 0;
    char *line = strchr(text, '\n');
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    *count = 0;
    *rows = efs_sys_calloc(lines + 1, sizeof(**rows));
    if (!*rows)
        return -ENOMEM;
    for (char *end; line && line[1]; line = end) {
        if (!(end = strchr(++line, '\n')))
            return -EUCLEAN;
        *end = '\0';
        if (!parse_row(line, &(*rows)[(*count)++]))
            return -EUCLEAN;
    }
    return line ? 0 : -EUCLEAN;
}

/* Where the next parts of the list are written. */
struct list {
    struct efs_listed_expert *expert;
    struct efs_tensor *tensor;
    char *names;
};

/* Of a row, bounds the memory of the name for one expert. */
static size_t name_room(const struct row *row)
{
    return row->name_bytes + DIGITS + 1;
}

static const char *put_name(struct list *list, const struct row *row, uint64_t expert)
{
    char *name = list->names;
    const char *rest = row->name + row->number;
    int n;
    if (row->numbered) {
        rest += snprintf(NULL, 0, "%" PRIu64, row->first);
        n = snprintf(name, name_room(row), "%.*s%" PRIu64 "%s", (int)row->number, row->name, expert, rest);
    } else {
        n = snprintf(name, name_room(row), "%s", row->name);
    }
    list->names += n + 1;
    return name;
}

/* Adds the experts of the rows [row, end), which are a run. */
static void put_run(struct list *list, const struct row *row, const struct row *end)
{
    const char *stack = list->names;
    list->names = stpcpy(list->names, row->stack) + 1;
    for (uint64_t expert = row->first; expert <= row->last; expert++) {
        *list->expert++ = (struct efs_listed_expert){.stack = stack,
                                                     .layer = (uint32_t)row->layer,
                                                     .expert = (uint32_t)expert,
                                                     .tensors = list->tensor,
                                                     .tensor_count = (uint32_t)(end - row)};
        for (const struct row *r = row; r < end; r++) {
            *list->tensor = r->tensor;
            list->tensor++->name = put_name(list, r, expert);
        }
    }
}

static const struct row *run_end(const struct row *row, const struct row *all_end)
{
    const struct row *end = row + 1;
    while (end < all_end && is_same_run(row, end))
        end++;
    return end;
}

static errint_t put_rows(const struct row *rows, size_t row_count, struct efs_listed_expert **out, uint32_t *count)
{
    uint64_t experts = 0, tensors = 0, names = 0;
    const struct row *all_end = rows + row_count, *end;
    for (const struct row *row = rows; row < all_end; row = end) {
        const uint64_t of_run = row->last - row->first + 1;
        end = run_end(row, all_end);
        experts += of_run;
        tensors += of_run * (uint64_t)(end - row);
        names += strlen(row->stack) + 1;
        for (const struct row *r = row; r < end; r++)
            names += of_run * name_room(r);
        if (experts > EXPERTS_MAX || tensors * sizeof(struct efs_tensor) + names > LIST_BYTES_MAX)
            return -EUCLEAN;
    }
    const size_t expert_bytes = (experts + 1) * sizeof(**out), tensor_bytes = tensors * sizeof(struct efs_tensor);
    *out = efs_sys_malloc(expert_bytes + tensor_bytes + names);
    if (!*out)
        return -ENOMEM;
    struct list list = {.expert = *out, .tensor = (void *)((char *)*out + expert_bytes)};
    list.names = (char *)list.tensor + tensor_bytes;
    for (const struct row *row = rows; row < all_end; row = end) {
        end = run_end(row, all_end);
        put_run(&list, row, end);
    }
    *count = (uint32_t)experts;
    return 0;
}

errint_t efs_layers_parse(char *text, struct efs_listed_expert **experts, uint32_t *count)
{
    size_t row_count;
    struct row *rows;
    errint_t rc = parse_rows(text, &rows, &row_count);
    if (rc == 0)
        rc = put_rows(rows, row_count, experts, count);
    free(rows);
    return rc;
}
