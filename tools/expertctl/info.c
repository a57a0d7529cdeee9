/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - expertctl info STORE|CHECKPOINT: sizes, and the budget that holds all experts. */
#include "expertctl.h"

#include "expertfs-pack.h"
#include "info_checkpoint.h"
#include "mountpoint.h"
#include "names.h"
#include "options.h"
#include "rows.h"
#include "size.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

struct arguments {
    struct tools_arguments path;
    bool json;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {.name = "json", .help = "Print JSON", .kind = TOOLS_FLAG, .at = AT(json)}, {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|CHECKPOINT|NAME",
    .help =
        "Show what STORE holds and what packing measured, or what CHECKPOINT holds before it is packed; and the "
        "budget of a mount that keeps all experts in memory. NAME is that of a store, of a mount, or ORG/NAME in the "
        "cache of the Hugging Face Hub.\v"
        "Examples:\n  expertctl info model.efs\n  expertctl info --json model/",
    .at = AT(path)};

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

/* The budget of a mount that holds all experts coded: 2% more for free space inside the pool's segments, and 64 MiB for
 * the buffers of reads and decodes. */
static uint64_t info_budget(uint64_t coded_bytes)
{
    return coded_bytes + coded_bytes / 50 + (UINT64_C(64) << 20);
}

static void print_memory(uint64_t source_bytes, uint64_t expert_raw_bytes, uint64_t expert_coded_bytes)
{
    char text[16];
    printf("other     %s\n", tools_size_print(source_bytes - expert_raw_bytes, text, sizeof(text)));
    printf("budget    %s holds all experts, coded\n",
           tools_size_print(info_budget(expert_coded_bytes), text, sizeof(text)));
}

static void info_print_text(const char *path, const struct efs_store_info *info, const json_t *report)
{
    char a[32], b[16];
    struct efs_pack_row rows[EFS_PACK_ROWS];
    const char *family = json_string_value(json_object_get(report, "family"));
    if (info->in_place)
        ctl_print_line(stdout, "%s: checkpoint, not packed", path);
    else
        ctl_print_line(stdout, "%s: expertfs store, version %u, %016" PRIx64, path, info->version, info->content_hash);
    printf("size      %s of %s (%.3f), index %s\n", tools_size_print(info->store_bytes, a, sizeof(a)),
           tools_size_print(info->source_bytes, b, sizeof(b)), ratio(info->store_bytes, info->source_bytes),
           tools_size_print(info->index_bytes, (char[16]){0}, 16));
    ctl_print_line(stdout, "family    %s", family ? family : "?");
    printf("files     %" PRIu64 ", tensors %" PRIu64 "\n", info->files, info->tensors);
    printf("experts   %" PRIu64 " in %" PRIu64 " layers, %s of %s (%.3f)\n", info->experts, info->layers,
           tools_size_print(info->expert_coded_bytes, a, sizeof(a)),
           tools_size_print(info->expert_raw_bytes, b, sizeof(b)),
           ratio(info->expert_coded_bytes, info->expert_raw_bytes));
    print_memory(info->source_bytes, info->expert_raw_bytes, info->expert_coded_bytes);
    printf("shards    %" PRIu64 " of %u elements, %" PRIu64 " objects, %" PRIu64 " groups\n", info->shards,
           info->shard_elements, info->objects, info->groups);
    for (uint32_t c = 0; efs_codec_name(c); c++)
        if (info->codec_shards[c])
            printf("%-9s %s, %s of %s\n", efs_codec_name(c),
                   tools_count_print(info->codec_shards[c], "shard", a, sizeof(a)),
                   tools_size_print(info->codec_coded_bytes[c], (char[16]){0}, 16),
                   tools_size_print(info->codec_raw_bytes[c], b, sizeof(b)));
    unsigned count = tools_rows_from_json(report, rows, EFS_PACK_ROWS);
    printf("\n");
    tools_rows_print(rows, count);
}

static json_t *info_to_json(const struct efs_store_info *info, const json_t *report)
{
    char hash[24];
    json_t *by_codec = json_object();
    for (uint32_t c = 0; efs_codec_name(c); c++)
        json_object_set_new(by_codec, efs_codec_name(c),
                            json_pack("{s:I, s:I, s:I}", "shards", (json_int_t)info->codec_shards[c], "raw_bytes",
                                      (json_int_t)info->codec_raw_bytes[c], "coded_bytes",
                                      (json_int_t)info->codec_coded_bytes[c]));
    snprintf(hash, sizeof(hash), "%016" PRIx64, info->content_hash);
    return json_pack(
        "{s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:O}", "version",
        (json_int_t)info->version, "content_hash", hash, "store_bytes", (json_int_t)info->store_bytes, "source_bytes",
        (json_int_t)info->source_bytes, "index_bytes", (json_int_t)info->index_bytes, "files", (json_int_t)info->files,
        "tensors", (json_int_t)info->tensors, "experts", (json_int_t)info->experts, "layers", (json_int_t)info->layers,
        "groups", (json_int_t)info->groups, "objects", (json_int_t)info->objects, "shards", (json_int_t)info->shards,
        "shard_elements", (json_int_t)info->shard_elements, "expert_raw_bytes", (json_int_t)info->expert_raw_bytes,
        "expert_coded_bytes", (json_int_t)info->expert_coded_bytes, "other_bytes",
        (json_int_t)(info->source_bytes - info->expert_raw_bytes), "budget_bytes",
        (json_int_t)info_budget(info->expert_coded_bytes), "codecs", by_codec, "report", report);
}

static int checkpoint_run(const struct arguments *a, const char *path)
{
    struct ctl_checkpoint c;
    struct efs_error err = {""};
    char text[16];
    errint_t rc = ctl_checkpoint_read(path, &c, NULL, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    if (a->json)
        return ctl_print_json(json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "family", c.family, "source_bytes",
            (json_int_t)c.source_bytes, "files", (json_int_t)c.files, "experts", (json_int_t)c.experts, "layers",
            (json_int_t)c.layers, "expert_raw_bytes", (json_int_t)c.expert_raw_bytes, "expert_coded_bytes",
            (json_int_t)c.expert_coded_bytes, "other_bytes", (json_int_t)(c.source_bytes - c.expert_raw_bytes),
            "budget_bytes", (json_int_t)info_budget(c.expert_coded_bytes)));
    ctl_print_line(stdout, "%s: checkpoint, not packed", path);
    printf("size      %s\n", tools_size_print(c.source_bytes, text, sizeof(text)));
    ctl_print_line(stdout, "family    %s", c.family);
    printf("files     %" PRIu64 "\n", c.files);
    printf("experts   %" PRIu64 " in %" PRIu64 " layers, %s, ", c.experts, c.layers,
           tools_size_print(c.expert_raw_bytes, text, sizeof(text)));
    printf("about %s coded\n", tools_size_print(c.expert_coded_bytes, text, sizeof(text)));
    print_memory(c.source_bytes, c.expert_raw_bytes, c.expert_coded_bytes);
    if (c.experts && c.expert_coded_bytes == c.expert_raw_bytes)
        ctl_print_line(
            stderr,
            "expertctl: note: %s: experts are quantised and do not shrink; expertfs mounts the files without packing",
            path);
    return CTL_OK;
}

static int info_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    char path[4400];
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_name_find(*a.path.word, path, sizeof(path), &err);
    if (rc == 0 && ctl_is_checkpoint(path) && !ctl_is_mount(path))
        return checkpoint_run(&a, path);
    if (rc == 0)
        rc = ctl_store_open(path, &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    efs_store_info(store, &info);
    json_t *report = json_loadb(info.report_json, info.report_bytes, 0, NULL);
    if (!report)
        report = json_object(); /* the report is optional in a store */
    int status = CTL_OK;
    if (a.json)
        status = ctl_print_json(info_to_json(&info, report));
    else
        info_print_text(path, &info, report);
    json_decref(report);
    efs_store_close(store);
    return status;
}

const struct ctl_command ctl_info = {"info", "show what a store or a checkpoint holds", info_run};
