/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - mkexpertfs SRC OUT: pack a checkpoint into a store. */
#include "mkexpertfs.h"

#include "control_file.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "reclaim_unfinished.h"
#include "process.h"
#include "size.h"
#include "sources.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BF16_BYTES 2
#define SHARD_STEP_BYTES (16u << 10) /* a block of 8192 elements */
#define SHARD_BYTES_MAX (8u << 20)
#define THREADS_MAX 1024
#define STEP_BYTES_MIN (1u << 20)

struct arguments {
    struct tools_arguments paths;
    const char *src, *out; /* src may be NULL to resume or undo: the store names it */
    struct efs_pack_options options;
    struct reclaim reclaim;
    bool begin, resume, undo, copy;
    bool quiet, json;
};

static void take_shard_size(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct arguments *a = into;
    uint64_t bytes = tools_option_size(state, option->name, value, SHARD_STEP_BYTES, SHARD_BYTES_MAX);
    if (bytes % SHARD_STEP_BYTES != 0)
        argp_error(state, "--%s %s: 16K to 8M in steps of 16K", option->name, value);
    a->options.shard_elements = (uint32_t)(bytes / BF16_BYTES);
}

static void take_small_reads(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct arguments *a = into;
    a->options.small_reads_bytes =
        strcmp(value, "none") == 0 ? UINT64_MAX : tools_option_size(state, option->name, value, 4096, UINT64_MAX - 1);
}

static void check_arguments(const struct argp_state *state, void *into)
{
    struct arguments *a = into;
    bool again = a->resume || a->undo;
    a->out = a->paths.word[a->paths.count - 1];
    a->src = a->paths.count > 1 ? a->paths.word[0] : NULL;
    a->reclaim.mode = a->undo ? RECLAIM_UNDO : a->resume ? RECLAIM_RESUME : a->begin ? RECLAIM_BEGIN : RECLAIM_NONE;
    if (!a->src && !again)
        argp_error(state, "OUT is needed");
    if (a->copy &&
        (a->reclaim.mode != RECLAIM_NONE || a->options.verify || a->options.experts || a->options.codec ||
         a->options.shard_elements || a->options.small_reads_bytes || a->options.threads || !a->options.weights))
        argp_error(state, "--copy copies a store as it is: it goes with --force, --quiet and --json alone");
    if ((a->src && !*a->src) || !*a->out)
        argp_error(state, "%s is empty", *a->out ? "SRC" : "OUT");
    if (a->resume && a->undo)
        argp_error(state, "only one of --resume and --undo");
    if (a->reclaim.mode != RECLAIM_NONE && efs_is_address(a->out))
        argp_error(state, "--reclaim packs into a file");
    if (a->reclaim.mode != RECLAIM_NONE && a->options.force)
        argp_error(state, "--reclaim and --force exclude each other");
    if (a->reclaim.mode != RECLAIM_NONE && a->options.small_reads_bytes)
        argp_error(state, "--reclaim and --small-reads exclude each other");
    if (again && a->options.experts)
        argp_error(state, "--experts goes with a first run");
    if (a->options.reclaim_step_bytes && a->reclaim.mode != RECLAIM_BEGIN && a->reclaim.mode != RECLAIM_RESUME)
        argp_error(state, "--step goes with --reclaim or --resume");
    if (a->reclaim.mode != RECLAIM_BEGIN && (a->reclaim.dry_run || a->reclaim.yes))
        argp_error(state, "--%s goes with --reclaim", a->reclaim.dry_run ? "dry-run" : "yes");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"codec", 0, "NAME", "How exponents are coded: auto (default), cascade, zstd, lz4 or raw (not at all)", TOOLS_WORD,
     AT(options.codec), .words = "auto|cascade|zstd|lz4|raw"}, /* enum efs_codec_choice */
    {"threads", 't', "N", "Code with N threads (default: all cores)", TOOLS_UNSIGNED, AT(options.threads), .least = 1,
     .most = THREADS_MAX},
    {"shard-size", 0, "SIZE",
     "The unit of decoding, as bytes of BF16: 16K to 8M in steps of 16K (default 1M: leave it)", TOOLS_CALL,
     .parse = take_shard_size},
    {"small-reads", 0, "SIZE",
     "Pack tensors of SIZE and more outside experts so that a small read takes few pages (default 1M); none: older "
     "versions of expertfs can mount OUT",
     TOOLS_CALL, .parse = take_small_reads},
    {"experts", 0, "REGEX",
     "Find tensors of experts by an extended regular expression first: group 1 is the layer, group 2 the expert; "
     "without group 2 the first dimension counts experts",
     TOOLS_TEXT, .at = AT(options.experts)},
    {"force", 'f', NULL, "Replace OUT if it exists", TOOLS_FLAG, .at = AT(options.force)},
    {"any", 0, NULL, "Pack SRC also if it has no weights, or not all", TOOLS_CLEAR, .at = AT(options.weights)},
    {"verify", 0, NULL, "Decode everything and compare it with SRC before OUT appears", TOOLS_FLAG,
     .at = AT(options.verify)},
    {"reclaim", 0, NULL,
     "Pack SRC in its own place, for a disk that cannot hold both: SRC is freed as OUT grows, and removed", TOOLS_FLAG,
     .at = AT(begin)},
    {"dry-run", 0, NULL, "With --reclaim: print whether it can be done and the free space it takes", TOOLS_FLAG,
     .at = AT(reclaim.dry_run)},
    {"step", 0, "SIZE",
     "With --reclaim and --resume: free about SIZE of SRC at a time, 1M or more (default 256M, or less where space is "
     "short)",
     TOOLS_SIZE, AT(options.reclaim_step_bytes), .least = STEP_BYTES_MIN},
    {"yes", 'y', NULL, "With --reclaim: do not ask", TOOLS_FLAG, .at = AT(reclaim.yes)},
    {"resume", 0, NULL, "Go on with a --reclaim that was interrupted; SRC may be left out", TOOLS_FLAG,
     .at = AT(resume)},
    {"undo", 0, NULL, "Go back: restore in SRC what was freed, and remove OUT.reclaim", TOOLS_FLAG, .at = AT(undo)},
    {"copy", 0, NULL,
     "Copy a store as it is: the file SRC to OUT, rados:POOL/NAME; or from an address, as in expertfs-remote(7), to "
     "the "
     "file OUT",
     TOOLS_FLAG, .at = AT(copy)},
    {"quiet", 'q', NULL, "No progress and no table", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print the closing table as JSON", TOOLS_FLAG, .at = AT(json)},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "SRC OUT\n--resume [SRC] OUT\n--undo [SRC] OUT\n--copy STORE OUT",
    .help = "Pack the checkpoint SRC, a directory (safetensors, GGUF and any other files) or one file, losslessly into "
            "the store OUT, a file or rados:POOL/NAME, which expertfs mounts. Quantised weights, as most GGUF files "
            "have, do not shrink.\v"
            "OUT appears when it is complete and on disk; a run that fails or is interrupted leaves nothing behind. "
            "With --reclaim it leaves OUT.reclaim, which together with what is left of SRC holds everything. Exit "
            "status: 0 packed, 1 failed, 2 wrong usage, 130 interrupted.",
    .at = AT(paths),
    .finish = check_arguments};

/* NAME/NAME: a model's name on the Hugging Face Hub, not a path. */
static bool is_hub_name(const char *src)
{
    const char *slash = src ? strchr(src, '/') : NULL;
    return slash && slash > src && slash[1] && !strchr(slash + 1, '/') && *src != '.' && *src != '~';
}

static errint_t refuse_other(const char *src, struct efs_error *err)
{
    struct efs_error ignored;
    char *config, store[4200];
    if (src && efs_is_address(src))
        return efs_fail(err, -EINVAL,
                        "SRC is an address: only files are packed\nhint: `expertctl up` serves it without "
                        "packing; to pack it, download it first");
    if (tools_control_read(src, "config", &config, &ignored) < 0)
        return 0;
    tools_line_path(config, "store", store, sizeof(store));
    free(config);
    return efs_fail(err, -EINVAL,
                    "%s: is a mount of expertfs; its store is %s\nhint: copy the store; to pack it in another way, "
                    "`expertctl unpack` it first",
                    src, store);
}

static int report_failure(const struct arguments *a, errint_t rc, const struct efs_error *err)
{
    bool interrupted = rc == -ECANCELED && tools_interrupted();
    bool left = a->reclaim.mode != RECLAIM_NONE && efs_reclaim_unfinished(a->out);
    if (interrupted)
        fprintf(stderr, "mkexpertfs: interrupted%s\n", left ? "" : "; nothing was left behind");
    else
        fprintf(stderr, "mkexpertfs: %s\n", err->text[0] ? err->text : strerror(-rc));
    if (rc == -ENOENT && is_hub_name(a->src) && access(a->src, F_OK) < 0)
        fprintf(stderr, "hint: `hf download %s --local-dir DIR` gets a model of that name from the Hugging Face Hub\n",
                EFS_WORD(a->src));
    if (rc == -ENOSPC && a->reclaim.mode == RECLAIM_NONE && !a->copy && !efs_is_address(a->out))
        fprintf(stderr, "hint: where SRC is on the same disk, --reclaim packs it in its own place\n");
    if (left)
        print_unfinished(a->out);
    return interrupted ? TOOLS_EXIT_INTERRUPTED : EXIT_FAILURE;
}

/* Before the packing, which takes long. */
static void note_small_gain(const char *src)
{
    double saved;
    struct efs_error ignored;
    if (src && efs_pack_estimate(src, &saved, &ignored) == 0 && saved < EFS_PACK_WORTH)
        fprintf(
            stderr,
            "mkexpertfs: note: %s: packing saves about %.1f %%; `expertfs %s MOUNTPOINT' serves it without packing\n",
            src, 100 * saved, src);
}

/* The files of SRC as they are before the packing; none, if they cannot be listed. */
static void list_sources(const char *src, struct tools_sources *sources)
{
    char *path;
    struct efs_error ignored;
    *sources = (struct tools_sources){.count = 0};
    if (efs_source_path(src, &path, &ignored) == 0) {
        tools_sources_list(path, sources, &ignored);
        free(path);
    }
}

/* start: when the program began. */
static void remember_packed(void *start, const struct efs_pack_report *report, uint32_t file, const struct stat *st)
{
    const struct efs_same_range all = {.file = file, .bytes = (uint64_t)st->st_size};
    efs_same_remember(report->content_hash, st, start, &all, true);
}

static int copy_run(const struct arguments *a, struct tools_progress *progress)
{
    struct efs_error err = {""};
    uint64_t bytes;
    char size[16];
    errint_t rc = efs_store_copy(a->src, a->out, a->options.force, tools_progress_report, progress, &bytes, &err);
    tools_progress_clear(progress);
    if (rc < 0)
        return report_failure(a, rc, &err);
    tools_size_print(bytes, size, sizeof(size));
    if (a->json)
        printf("{\"store_bytes\": %llu}\n", (unsigned long long)bytes);
    else if (!a->quiet)
        printf("%s: copied, %s\n", a->out, size);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct arguments a = {.options = {.weights = true}};
    static struct efs_pack_report report; /* 17 KB */
    struct efs_error err = {""};
    struct tools_progress progress;
    tools_init();
    tools_parse(&command, argc, argv, &a);

    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    if (a.copy)
        return copy_run(&a, &progress);
    a.options.progress = tools_progress_report;
    a.options.progress_arg = &progress;
    bool done = true;
    struct timespec start;
    struct tools_sources sources = {.count = 0};
    clock_gettime(CLOCK_REALTIME, &start);
    a.options.packed = remember_packed;
    a.options.packed_arg = &start;
    errint_t rc = a.reclaim.mode <= RECLAIM_BEGIN ? tools_reclaim_unfinished(a.src, a.out, &err) : 0;
    if (rc == 0 && a.reclaim.mode <= RECLAIM_BEGIN)
        rc = refuse_other(a.src, &err);
    if (rc == 0 && !a.quiet && a.reclaim.mode <= RECLAIM_BEGIN && a.options.codec != EFS_CHOOSE_RAW)
        note_small_gain(a.src);
    if (rc == 0 && a.reclaim.mode == RECLAIM_NONE)
        list_sources(a.src, &sources);
    if (rc == 0)
        rc = a.reclaim.mode != RECLAIM_NONE ? reclaim_run(&a.reclaim, a.src, a.out, &a.options, &report, &done, &err)
             : efs_is_address(a.out)        ? pack_to_pool(a.src, a.out, &a.options, &report, &err)
                                            : efs_pack(a.src, a.out, &a.options, &report, &err);
    tools_progress_clear(&progress);
    if (rc == 0 && done && sources.path)
        tools_record_add(NULL, report.content_hash, &sources, &err); /* for `expertctl up` */
    tools_sources_free(&sources);
    if (rc < 0)
        return report_failure(&a, rc, &err);
    if (!done)
        return EXIT_SUCCESS;
    if (report.warning[0])
        fprintf(stderr, "mkexpertfs: warning: %s: %s\n", a.src ? a.src : a.out, report.warning);
    for (const char *line = report.notice; *line && !a.quiet; line += strspn(line, "\n")) {
        size_t bytes = strcspn(line, "\n");
        fprintf(stderr, "mkexpertfs: note: %.*s\n", (int)bytes, line);
        line += bytes;
    }
    if (a.json) {
        if (!print_report_json(&report, a.out))
            return report_failure(&a, -ENOMEM, &err);
    } else if (!a.quiet) {
        print_report(&report, a.out);
    }
    return EXIT_SUCCESS;
}
