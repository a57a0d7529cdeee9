/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c - see expertfs-placement-private.h: the text of a placement, expertfs-placement(5). */
#include "expertfs-placement-private.h"

#include "expertfs-private.h"
#include "state_file.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 128u /* of a line without rows of digits */
#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define SERVERS_MAX 1024u
#define CELLS_MAX (4u * EFS_PLACEMENT_BYTES_MAX) /* a digit has four experts */

bool efs_server_name_valid(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t bytes = strspn(name, allowed);
    return bytes > 0 && bytes < EFS_SERVER_NAME_BYTES && name[bytes] == '\0' && name[0] != '.';
}

errint_t efs_server_name_check(const char *name, struct efs_error *err)
{
    if (efs_server_name_valid(name))
        return 0;
    return efs_fail(err, -EINVAL, "server=%s: not a name of 1 to %u letters, digits, '.', '_' and '-', no '.' first",
                    name, EFS_SERVER_NAME_BYTES - 1);
}

static size_t row_digits(const struct efs_cluster_placement *p)
{
    return (p->experts + 3) / 4;
}

static size_t row_cells(const struct efs_cluster_placement *p)
{
    return (size_t)p->layers * p->experts;
}

/* ---- reading ---- */

struct text {
    const char *at, *end;
};

/* The next line, without its end. false: there is none. */
static bool next_line(struct text *t, const char **line, size_t *bytes)
{
    const char *end = memchr(t->at, '\n', (size_t)(t->end - t->at));
    if (!end)
        return false;
    *line = t->at;
    *bytes = (size_t)(end - t->at);
    t->at = end + 1;
    return true;
}

/* The same as a string of at most LINE_BYTES - 1 characters. */
static bool next_words(struct text *t, char words[LINE_BYTES])
{
    const char *line;
    size_t bytes;
    if (!next_line(t, &line, &bytes) || bytes >= LINE_BYTES || memchr(line, 0, bytes))
        return false;
    memcpy(words, line, bytes);
    words[bytes] = '\0';
    return true;
}

/* A line of a name, a blank and a decimal number below 2^63. */
static bool next_number(struct text *t, const char *name, uint64_t *number)
{
    char words[LINE_BYTES];
    const size_t bytes = strlen(name);
    if (!next_words(t, words) || strncmp(words, name, bytes) != 0 || words[bytes] != ' ')
        return false;
    const char *digits = words + bytes + 1;
    const size_t count = strspn(digits, "0123456789");
    *number = strtoull(digits, NULL, 10);
    return count > 0 && count < 19 && digits[count] == '\0';
}

/* A line of a name, a blank and a word of fewer than `room` bytes. */
static bool next_word(struct text *t, const char *name, char *word, size_t room)
{
    char words[LINE_BYTES];
    const size_t bytes = strlen(name);
    if (!next_words(t, words) || strncmp(words, name, bytes) != 0 || words[bytes] != ' ' ||
        strlen(words + bytes + 1) >= room)
        return false;
    strcpy(word, words + bytes + 1);
    return true;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A layer of a server: digits of four experts, the first of which is the highest bit. row: NULL: only checks it. */
static bool next_row(struct text *t, const struct efs_cluster_placement *p, uint8_t *row)
{
    const char *line;
    size_t bytes;
    if (!next_line(t, &line, &bytes) || bytes != row_digits(p))
        return false;
    for (uint32_t e = 0; e < 4 * bytes; e++) {
        const int digit = digit_value(line[e / 4]);
        const bool held = digit >= 0 && (digit >> (3 - e % 4) & 1);
        if (digit < 0 || (held && e >= p->experts))
            return false;
        if (row && e < p->experts)
            row[e] = held;
    }
    return true;
}

static const char *parse_head(struct text *t, struct efs_cluster_placement *p)
{
    char words[LINE_BYTES], hash[17];
    uint64_t layers, experts, servers, made;
    if (!next_words(t, words) || strncmp(words, "expertfs-placement ", 19) != 0)
        return "not a placement";
    if (strcmp(words + 19, "1") != 0)
        return "a placement of a version that is not known";
    if (!next_word(t, "store", hash, sizeof(hash)) || strlen(hash) != 16 || strspn(hash, "0123456789abcdef") != 16)
        return "no store";
    p->content_hash = strtoull(hash, NULL, 16);
    if (!next_number(t, "layers", &layers) || layers < 1 || layers > LAYERS_MAX ||
        !next_number(t, "experts", &experts) || experts < 1 || experts > EXPERTS_MAX ||
        !next_number(t, "servers", &servers) || servers < 1 || servers > SERVERS_MAX ||
        layers * experts > CELLS_MAX / servers)
        return "layers, experts or servers out of range";
    if (!next_number(t, "number", &p->number) || !next_number(t, "made", &made) ||
        !next_word(t, "rule", p->rule, sizeof(p->rule)) || !efs_server_name_valid(p->rule))
        return "no number, time or rule";
    p->layers = (uint32_t)layers;
    p->experts = (uint32_t)experts;
    p->servers = (uint32_t)servers;
    p->made_at = (int64_t)made;
    return NULL;
}

static const char *parse_servers(struct text *t, const char *only, struct efs_cluster_placement *p)
{
    char name[EFS_SERVER_NAME_BYTES], before[EFS_SERVER_NAME_BYTES] = "", last[LINE_BYTES];
    const size_t cells = row_cells(p);
    for (uint32_t n = 0; n < p->servers; n++) {
        if (!next_word(t, "server", name, sizeof(name)) || !efs_server_name_valid(name) || strcmp(before, name) >= 0)
            return "a server without a name, or not in the order of the names";
        strcpy(before, name);
        uint8_t *row = !only ? p->held + n * cells : strcmp(only, name) == 0 ? p->held : NULL;
        strcpy(p->name[n], name);
        for (uint32_t l = 0; l < p->layers; l++)
            if (!next_row(t, p, row ? row + (size_t)l * p->experts : NULL))
                return "a layer without a digit for every four experts";
    }
    return next_words(t, last) && strcmp(last, "end") == 0 && t->at == t->end ? NULL : "cut, or too long";
}

errint_t efs_placement_parse(const char *text, size_t bytes, const char *only, struct efs_cluster_placement *p,
                             const char **wrong)
{
    struct text t = {text, text + bytes};
    *p = (struct efs_cluster_placement){.held = NULL};
    *wrong = bytes > EFS_PLACEMENT_BYTES_MAX ? "too long" : parse_head(&t, p);
    if (*wrong)
        return -EUCLEAN;
    p->held = efs_sys_calloc(row_cells(p), only ? 1 : p->servers);
    p->name = efs_sys_calloc(p->servers, sizeof(*p->name));
    if (!p->held || !p->name) {
        *wrong = "no memory";
        return -ENOMEM;
    }
    *wrong = parse_servers(&t, only, p);
    return *wrong ? -EUCLEAN : 0;
}

void efs_placement_free(struct efs_cluster_placement *p)
{
    free(p->name);
    free(p->held);
    *p = (struct efs_cluster_placement){.held = NULL};
}

errint_t efs_placement_read(int fd, char **text, size_t *bytes)
{
    struct stat st;
    *text = NULL;
    errint_t rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && st.st_size > (off_t)EFS_PLACEMENT_BYTES_MAX)
        rc = -EFBIG;
    *bytes = rc == 0 ? (size_t)st.st_size : 0;
    if (rc == 0 && !(*text = efs_sys_malloc(*bytes + 1)))
        rc = -ENOMEM;
    if (rc == 0)
        rc = efs_sys_pread_all(fd, *text, *bytes, 0);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* ---- writing ---- */

static bool may_print(const struct efs_cluster_placement *p)
{
    bool good = p->layers >= 1 && p->layers <= LAYERS_MAX && p->experts >= 1 && p->experts <= EXPERTS_MAX &&
                p->servers >= 1 && p->servers <= SERVERS_MAX && row_cells(p) <= CELLS_MAX / p->servers &&
                efs_server_name_valid(p->rule) && p->number < UINT64_C(1000000000000000000) && p->made_at >= 0;
    for (uint32_t n = 0; good && n < p->servers; n++)
        good = efs_server_name_valid(p->name[n]) && (n == 0 || strcmp(p->name[n - 1], p->name[n]) < 0);
    return good;
}

static void print_row(FILE *out, const struct efs_cluster_placement *p, const uint8_t *row)
{
    for (uint32_t e = 0; e < p->experts; e += 4) {
        unsigned digit = 0;
        for (uint32_t i = 0; i < 4; i++)
            digit = digit << 1 | (e + i < p->experts && row[e + i]);
        fputc("0123456789abcdef"[digit], out);
    }
    fputc('\n', out);
}

errint_t efs_placement_print(const struct efs_cluster_placement *p, char **text, size_t *bytes)
{
    *text = NULL;
    if (!may_print(p))
        return -EINVAL;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    fprintf(out,
            "expertfs-placement 1\nstore %016" PRIx64 "\nlayers %u\nexperts %u\nservers %u\nnumber %" PRIu64
            "\nmade %lld\nrule %s\n",
            p->content_hash, p->layers, p->experts, p->servers, p->number, (long long)p->made_at, p->rule);
    for (uint32_t n = 0; n < p->servers; n++) {
        fprintf(out, "server %s\n", p->name[n]);
        for (uint32_t l = 0; l < p->layers; l++)
            print_row(out, p, p->held + n * row_cells(p) + (size_t)l * p->experts);
    }
    fputs("end\n", out);
    errint_t rc = efs_text_stream_end(out, text);
    if (rc < 0 || *bytes <= EFS_PLACEMENT_BYTES_MAX)
        return rc;
    free(*text);
    *text = NULL;
    return -EINVAL;
}

errint_t efs_placement_save(const char *path, const struct efs_cluster_placement *p, struct efs_error *err)
{
    char whole[EFS_STATE_PATH_BYTES], *text;
    size_t bytes;
    errint_t rc = efs_placement_print(p, &text, &bytes);
    if (rc < 0)
        return efs_fail(err, rc, "%s: %s", path, rc == -EINVAL ? "a placement of more than 1 MiB" : strerror(-rc));
    snprintf(whole, sizeof(whole), "%s%.4000s", strchr(path, '/') ? "" : "./", path);
    rc = efs_state_save(whole, text, bytes, err);
    free(text);
    return rc;
}
