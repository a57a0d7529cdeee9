/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h - what live runs need around them: a private folder to mount on, a memory cgroup, a daemon of our own.
 *
 * A warden, a process of its own that no Ctrl-C reaches, waits for this one to end in whatever way and takes away what
 * is left then: mount, folder, cgroup.
 */
#ifndef MOE_REPLAY_STAGE_H
#define MOE_REPLAY_STAGE_H

#include "expertfs-private.h"
#include "cgroup.h"

struct replay_stage {
    char folder[256], mountpoint[272];
    char log[272], state[272];   /* what the daemon says; what it keeps between mounts */
    struct replay_cgroup cgroup; /* path "": none, and why: */
    struct efs_error no_cgroup;
    pid_t warden, daemon; /* 0: none */
    int alive_fd;
};

/* Folder, warden, and a try whether a cgroup can be made. */
errint_t replay_stage_open(struct replay_stage *stage, struct efs_error *err);
/* Ends what is under way and takes everything away. */
void replay_stage_close(struct replay_stage *stage);

/* A fresh cgroup for the next run, if there can be one. Returns its limit; 0: the run goes without. */
uint64_t replay_stage_limit(struct replay_stage *stage, uint64_t limit_bytes);

/* The daemon has no past: its state is the store's profile alone. */
errint_t replay_stage_forget(struct replay_stage *stage, const struct efs_profile *profile, struct efs_error *err);

/* Start "program -f store mountpoint -o options" in the cgroup and wait until it serves. -ECANCELED: the user ended
 * it; else what the daemon said is in err. */
errint_t replay_stage_mount(struct replay_stage *stage, const char *program, const char *store, const char *options,
                            struct efs_error *err);
/* End the daemon; -EIO: it had died before. */
errint_t replay_stage_unmount(struct replay_stage *stage, struct efs_error *err);

/* The expertfs program: beside this one, else as PATH finds it. */
void replay_stage_program(char *path, size_t room);
/* Does its help tell of the mount option name? */
bool replay_stage_knows(const char *program, const char *name);

#endif
