/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim.c - mkexpertfs --reclaim, --resume, --undo: asks for confirmation, runs, and prints how to continue. */
#include "mkexpertfs.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "interrupt.h"
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_need(FILE *stream, const char *src, const char *out, const struct efs_reclaim_need *need)
{
    char files[32], bytes[16], most[16], left[16];
    fprintf(stream, "%s: %s, %s, would become %s and be removed; at most %s more are needed at a time, %s are free\n",
            src, tools_count_print(need->files, "file", files, sizeof(files)),
            tools_size_print(need->source_bytes, bytes, sizeof(bytes)), out,
            tools_size_print(need->need_bytes, most, sizeof(most)),
            tools_size_print(need->free_bytes, left, sizeof(left)));
}

/* Whether the user typed yes. */
static bool ask_user(const char *out)
{
    fprintf(stderr,
            "The source is freed step by step: from the first on, only what is left of it and\n"
            "%s.reclaim together are the checkpoint. Nothing else may write to it meanwhile.\n"
            "Type yes to begin: ",
            out);
    return tools_answer_is_yes();
}

static errint_t reclaim_begin(const struct reclaim *reclaim, const char *src, const char *out,
                              const struct efs_pack_options *options, struct efs_pack_report *report, bool *done,
                              struct efs_error *err)
{
    struct efs_reclaim_need need;
    if (reclaim->yes && !reclaim->dry_run) {
        *done = true;
        return efs_reclaim(src, out, options, report, err);
    }
    errint_t rc = efs_reclaim_check_start(src, out, options, &need, err);
    if (rc < 0)
        return rc;
    print_need(reclaim->dry_run ? stdout : stderr, src, out, &need);
    if (need.need_bytes > need.free_bytes)
        return efs_fail(err, -ENOSPC, "%s: not enough free space", out);
    if (reclaim->dry_run)
        return 0;
    if (!isatty(STDIN_FILENO))
        return efs_fail(err, -EINVAL, "--reclaim destroys the source: --yes is needed where nobody can be asked");
    if (!ask_user(out))
        return efs_fail(err, -ECANCELED, "nothing was done");
    *done = true;
    return efs_reclaim(src, out, options, report, err);
}

errint_t reclaim_run(const struct reclaim *reclaim, const char *src, const char *out,
                     const struct efs_pack_options *options, struct efs_pack_report *report, bool *done,
                     struct efs_error *err)
{
    *done = reclaim->mode == RECLAIM_RESUME;
    if (reclaim->mode == RECLAIM_BEGIN)
        return reclaim_begin(reclaim, src, out, options, report, done, err);
    if (reclaim->mode == RECLAIM_RESUME)
        return efs_reclaim_resume(src, out, options, report, err);
    return efs_reclaim_undo(src, out, options, err);
}

void print_unfinished(const char *out)
{
    if (access(out, F_OK) == 0) /* a complete store cannot be undone */
        fprintf(stderr, "mkexpertfs: %s.reclaim is left\nhint: `mkexpertfs --resume %s` removes it\n", out,
                EFS_WORD(out));
    else
        fprintf(
            stderr,
            "mkexpertfs: the source and %s.reclaim together hold everything\nhint: `mkexpertfs --resume %s` goes on, "
            "`mkexpertfs --undo %s` goes back\n",
            out, EFS_WORD(out), EFS_WORD(out));
}
