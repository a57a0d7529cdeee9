/*
 * handout.h - experts that the mount hands out over its socket, in windows that stay mapped: see expertfs-protocol.h.
 * No file is opened or mapped for one. With the lock of the mount held, unless said otherwise.
 */
#ifndef EFS_CLIENT_HANDOUT_H
#define EFS_CLIENT_HANDOUT_H

#include "expertfs.h"
#include "expertfs-protocol.h"

#include <time.h>

struct efs_expert_file;
struct efs_mount;
struct efs_handout_window;
struct efs_handout;

/* What an expert's file is handed out as. */
struct efs_handed {
    uint32_t tag; /* EFS_HANDOUT_TOLD: it is not handed out */
    struct efs_handout_window *window;
};

/* Connect to the mount's socket. NULL: there is none for us; files do. Without lock. */
struct efs_handout *efs_handout_connect(int root);
/* Without lock, when nothing is used any more. NULL is fine. */
void efs_handout_free(struct efs_handout *handout);
/* May it be asked for more? */
bool efs_handout_works(const struct efs_handout *handout);

/* A tag for a file that is to be asked for. false: no memory, or too many. */
bool efs_handout_take_tag(struct efs_handout *handout, struct efs_expert_file *file);
/* The file is used no more: what it was handed out as is given back with the next packet. */
void efs_handout_drop(struct efs_handout *handout, struct efs_expert_file *file);
/* Is an expert on its way that nobody waits for any more? */
bool efs_handout_has_orphans(const struct efs_handout *handout);
/* A layer's experts that are held already are used: told with the next packet. false: there is no room for it now. */
bool efs_handout_tell(struct efs_handout *handout, const char *stack, uint32_t layer, const struct efs_need *needs,
                      uint32_t count);
/* Is there something to be told, or given back? */
bool efs_handout_has_news(const struct efs_handout *handout);

/* With efs_mount.telling held and without lock: tell, give back what was dropped, then ask (NULL: do not). <0: it does
 * not work any more. */
errint_t efs_handout_send(struct efs_mount *m, const struct efs_handout_ask *ask);
/* End the wait of who receives: something else has come. */
void efs_handout_nudge(const struct efs_handout *handout);
/* Wait for answers until then (NULL: for ever) and take them; the lock is given up while it waits. By one thread at a
 * time, which comes back early at a nudge. -ETIMEDOUT. */
errint_t efs_handout_receive(struct efs_mount *m, const struct timespec *until);

#endif
