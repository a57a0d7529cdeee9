/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_library.c - the store opened in this process: a layer's experts are named to the library, which runs
 * them from the coded form as they arrive. Nothing is handed out.
 */
#include "mount.h"
#include "reader.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct library_reader {
    struct replay_reader reader;
    struct efs *fs;
    enum efs_form form;
    bool guesses;
};

static errint_t library_run(struct replay_reader *reader, struct efs_team *team, const struct efs_mixture *mixture,
                            struct efs_error *err)
{
    struct library_reader *r = (struct library_reader *)reader;
    struct efs_mixture m = *mixture;
    m.form = r->form;
    return efs_expert_ffn(r->fs, team, &m, err);
}

static errint_t library_count(struct replay_reader *reader, struct replay_counters *c, struct efs_error *err)
{
    const struct library_reader *r = (const struct library_reader *)reader;
    struct efs_stats s;
    char *text;
    size_t bytes;
    efs_stats(r->fs, &s, sizeof(s));
    /* of experts of which parts were there the rest had to be read, too */
    *c = (struct replay_counters){
        .hits = {s.requests_f, s.requests_c, s.requests_s, s.requests_e, s.requests_m + s.requests_p},
        .read_bytes = s.disk_bytes,
        .io_ns = s.disk_ns,
        .decode_ns = s.decode_ns,
        .policy_ns = s.policy_ns,
        .recoded_bytes = s.recoded_bytes};
    errint_t rc = r->guesses ? efs_describe(r->fs, "predict", &text, &bytes) : 0;
    if (rc < 0)
        return efs_fail(err, rc, "what is guessed is not told: %s", strerror(-rc));
    if (r->guesses) {
        replay_counters_guesses(c, text);
        free(text);
    }
    return 0;
}

static void library_close(struct replay_reader *reader)
{
    struct library_reader *r = (struct library_reader *)reader;
    efs_close(r->fs);
    free(r);
}

errint_t replay_reader_library(const char *store, const struct efs_options *options, struct replay_reader **reader,
                               struct efs_error *err)
{
    struct library_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    r->reader = (struct replay_reader){.run = library_run, .count = library_count, .close = library_close};
    r->guesses = options->prefetch != NULL;
    r->form = options->full_pool ? EFS_FORM_FULL : EFS_FORM_CODED;
    errint_t rc = efs_open(store, options, &r->fs, err);
    if (rc < 0) {
        free(r);
        return rc;
    }
    r->reader.fs = r->fs;
    *reader = &r->reader;
    return rc;
}
