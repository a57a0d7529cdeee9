/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_kind.c - detects the kind of a file by its first bytes, and by its name only if the format has no magic
 * (safetensors); parses names of split models.
 *
 * Ollama stores GGUF files as "sha256-...", a clone without Git LFS has pointer files with the names of the weights,
 * and macOS creates an AppleDouble file "._NAME" for each NAME on foreign file systems.
 */
#include "source.h"

#include "expertfs-private.h"

#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 7 /* digits of a part's number */

/* Files that are not weights but can have the names of weights. */
static const struct {
    const char *bytes;
    size_t count;
    const char *what;
    bool broken, any_name;
} others[] = {
    {"version https://git-lfs.github.com/spec/", 40,
     "is a Git LFS pointer, not the file that it stands for; \"git lfs pull\" gets that", true, true},
    {"\0\5\x16\7", 4, "is an AppleDouble file, which macOS puts beside a file", false, false},
};

bool efs_source_named_weights(const char *path)
{
    return efs_ends_with(path, ".safetensors") || efs_ends_with(path, ".gguf");
}

/* Detects error pages of servers saved as files (HTML, "Entry not found") and blocks that were never written.
 * Weights cannot start like this: a safetensors file starts with a number of 1 to 10^8 in 8 bytes, a GGUF file with
 * its magic. NULL: not detected. */
static const char *broken_start(const uint8_t *head, size_t bytes)
{
    size_t zeros = 0, text = 0;

    for (size_t i = 0; i < bytes; i++) {
        zeros += head[i] == 0;
        text +=
            head[i] >= ' ' ? head[i] != 0x7F && head[i] < 0xF8 : head[i] == '\n' || head[i] == '\r' || head[i] == '\t';
    }
    if (bytes <= 8) /* the format's reader reports it */
        return NULL;
    if (zeros == bytes)
        return "begins with zeros, as a file does whose download did not end";
    return text == bytes ? "is text, such as a web page, not the file that was to be downloaded" : NULL;
}

bool efs_source_part(const char *path, struct efs_source_part *part)
{
    const char *of = NULL;

    for (const char *next = strcasestr(path, "-of-"); next; next = strcasestr(next + 1, "-of-"))
        of = next;
    const char *digits = of;
    while (digits && digits > path && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    size_t after = of ? strspn(of + 4, "0123456789") : 0;
    if (!of || digits == of || digits == path || digits[-1] != '-' || of - digits > DIGITS_MAX || !after ||
        after > DIGITS_MAX || (strcmp(of + 4 + after, ".safetensors") != 0 && strcmp(of + 4 + after, ".gguf") != 0))
        return false;
    *part = (struct efs_source_part){.prefix_bytes = (int)(digits - path),
                                     .digits = (int)(of - digits),
                                     .number = strtoul(digits, NULL, 10),
                                     .count = strtoul(of + 4, NULL, 10),
                                     .end = of};
    return part->count > 0 && part->number <= part->count;
}

struct efs_source_kind efs_source_kind(const char *path, bool weights, const uint8_t *head, size_t bytes)
{
    if (bytes >= 4 && memcmp(head, "GGUF", 4) == 0)
        return (struct efs_source_kind){.format = EFS_SOURCE_GGUF};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if ((weights || others[i].any_name) && bytes >= others[i].count &&
            memcmp(head, others[i].bytes, others[i].count) == 0)
            return (struct efs_source_kind){.what = others[i].what, .broken = weights && others[i].broken};
    if (!weights)
        return (struct efs_source_kind){.format = EFS_SOURCE_PLAIN};
    const char *broken = broken_start(head, bytes);
    if (broken)
        return (struct efs_source_kind){.what = broken, .broken = true};
    return (struct efs_source_kind){.format = efs_ends_with(path, ".gguf") ? EFS_SOURCE_GGUF : EFS_SOURCE_SAFETENSORS};
}
