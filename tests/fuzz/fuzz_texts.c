/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_texts.c - any text as input of users, runtimes and state files: the first byte chooses the parser, the rest is
 * its input. A value that is accepted and can be printed must be the same after it is printed and parsed again.
 */
#include "counts.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "fuzz.h"
#include "hash.h"
#include "options.h"
#include "route.h"
#include "state_file.h"
#include "tune_text.h"
#include "want_text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNTS_HASH_AT 40 /* offset of header.hash in planner/counts.c */

/* A parser returns 0, or a negative error with a message in err. */
static void answered(errint_t rc, const struct efs_error *err)
{
    CHECK(rc <= 0);
    CHECK(rc == 0 || memchr(err->text, '\0', sizeof(err->text)) > (const void *)err->text);
}

static void wants(const char *text, size_t bytes)
{
    static struct efsd_want want;
    struct efs_error err = {""};
    int rc;
    for (size_t left = bytes; (rc = efsd_want_next(&text, &bytes, &want, &err)) > 0; left = bytes) {
        CHECK(bytes < left);
        CHECK(want.count > 0 && want.count <= EFSD_WANT_EXPERTS && strlen(want.stack) < EFSD_WANT_STACK);
        for (uint32_t i = 0; i < want.count; i++)
            CHECK(want.needs[i].tokens > 0);
    }
    CHECK(rc == 0 || (rc == -EINVAL && err.text[0]));
}

static void hints(const char *text, size_t bytes)
{
    static struct efsd_hint hint;
    struct efs_error err = {""};
    int rc;
    for (size_t left = bytes; (rc = efsd_hint_next(&text, &bytes, &hint, &err)) > 0; left = bytes) {
        CHECK(bytes < left);
        CHECK(hint.count > 0 && hint.count <= EFSD_WANT_EXPERTS);
        for (uint32_t i = 0; i < hint.count; i++)
            CHECK(hint.probabilities[i] >= 0 && hint.probabilities[i] <= 1);
    }
    CHECK(rc == 0 || (rc == -EINVAL && err.text[0]));
}

static void options(const char *text)
{
    struct efsd_options o;
    struct efs_error err = {""};
    efsd_options_init(&o);
    answered(efsd_options_parse(&o, text, &err), &err);
    efsd_options_free(&o);
}

static void tunings(const char *text)
{
    char back[EFS_TUNE_TEXT];
    struct efs_error err = {""};
    uint64_t size = 0, again = 0;
    unsigned pools = 0, pools_again = 0;
    struct efs_tune_plan plan = {0}, plan_again = {0};
    unsigned choice;

    answered(efs_parse_size(text, &size), &(struct efs_error){"size"});
    if (efs_parse_budget(text, &size, &err) == 0) {
        efs_tune_print_budget(size, back, sizeof(back));
        CHECK(efs_parse_budget(back, &again, &err) == 0 && again == size);
    }
    if (efs_tune_pools(text, &pools, &err) == 0) {
        efs_tune_print_pools(pools, back, sizeof(back));
        CHECK(efs_tune_pools(back, &pools_again, &err) == 0 && pools_again == pools);
    }
    if (efs_tune_plan(text, &plan, &err) == 0) {
        efs_tune_print_plan(&plan, back, sizeof(back));
        CHECK(efs_tune_plan(back, &plan_again, &err) == 0 && plan_again.automatic == plan.automatic);
        for (int p = 0; p < EFS_POOLS; p++)
            CHECK(plan.ratio[p] >= 0 && plan.ratio[p] <= 1 && plan_again.ratio[p] - plan.ratio[p] < 1e-3 &&
                  plan.ratio[p] - plan_again.ratio[p] < 1e-3);
    }
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        if (efs_tunables[i].choose &&
            efs_choice_parse(efs_tunables[i].name, efs_tunables[i].values, text, &choice, &err) == 0) {
            efs_choice_name(efs_tunables[i].values, choice, back, sizeof(back));
            CHECK(strcmp(back, text) == 0);
        }
}

static void route(const uint8_t *data, size_t bytes)
{
    struct efs_route r = {0};
    struct efs_error err = {""};
    errint_t rc = efs_route_parse("x.route", data, bytes, &r, &err);
    answered(rc, &err);
    CHECK(rc == 0 || !r.ids);
    CHECK(rc < 0 || (r.chosen >= 1 && r.chosen <= r.experts && r.layers >= 1 && r.tokens >= 1));
    for (uint64_t i = 0; rc == 0 && i < r.tokens * r.layers * r.chosen; i++)
        CHECK(r.ids[i] < r.experts);
    efs_route_free(&r);
}

/* Parses a profile from a memfd, by its path in /proc/self/fd. */
static void profile(const void *data, size_t bytes)
{
    char path[40];
    struct efs_profile p;
    struct efs_error err = {""};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    errint_t rc = efs_profile_load(path, &p, &err);
    answered(rc, &err);
    if (rc == 0) {
        char *text = efs_profile_json(&p);
        CHECK(text);
        free(text);
    }
    close(fd);
}

static char state_folder[] = "/tmp/expertfs-fuzz-XXXXXX", counts_path[EFS_STATE_PATH_BYTES];

/* Loads counts of a store of 2 layers and 4 experts with a valid checksum: the loader must check the values, too. */
static void counts(uint8_t *data, size_t bytes)
{
    struct efs_history history;
    struct efs_error err = {""};
    if (!counts_path[0]) {
        fuzz_folder(state_folder);
        CHECK(setenv("EXPERTFS_STATE", state_folder, 1) == 0);
        CHECK(efs_counts_path(1, counts_path, sizeof(counts_path), &err) == 0);
    }
    if (bytes >= COUNTS_HASH_AT + sizeof(uint64_t)) {
        memset(data + COUNTS_HASH_AT, 0, sizeof(uint64_t));
        uint64_t hash = efs_hash(data, bytes);
        memcpy(data + COUNTS_HASH_AT, &hash, sizeof(hash));
    }
    int fd = open(counts_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
    errint_t rc = efs_counts_load(1, 2, 4, &history, &err);
    answered(rc, &err);
    for (unsigned i = 0; rc == 0 && i < 8; i++)
        CHECK(history.counts[i] <= history.passes[i / 4] && history.at_rank[i] <= history.ranked[i / 4] &&
              history.ranked[i / 4] <= history.passes[i / 4] && history.passes[i / 4] <= EFS_HISTORY_MAX_PASSES);
    efs_history_free(&history);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 20)
        return 0;
    char *text = malloc(size); /* a string without the first byte */
    CHECK(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0]) {
    case 'w':
        wants(text, size - 1);
        break;
    case 'h':
        hints(text, size - 1);
        break;
    case 'o':
        options(text);
        break;
    case 't':
        tunings(text);
        break;
    case 'r':
        route(data + 1, size - 1);
        break;
    case 'p':
        profile(data + 1, size - 1);
        break;
    case 'c':
        counts((uint8_t *)text, size - 1);
        break;
    default:
        break;
    }
    free(text);
    return 0;
}
