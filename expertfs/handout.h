/*
 * handout.h - experts for processes of this machine over a socket, without a file each: efs_handout_ask and
 * efs_handout_answer of expertfs-protocol.h. Who mounted it, and root, may connect.
 */
#ifndef EFSD_HANDOUT_H
#define EFSD_HANDOUT_H

#include "expertfs.h"

struct efsd;
struct efsd_handout;

/* Begin to listen. 0 with *handout NULL: experts are not kept full here, there is nothing to hand out; -errno with the
 * reason in err. */
errint_t efsd_handout_start(struct efsd *daemon, struct efsd_handout **handout, struct efs_error *err);
/* No call into the engine is made any more, but of those whose lease comes. Before efs_close(). */
void efsd_handout_stop(struct efsd_handout *handout);
/* After efs_close(). NULL is fine. */
void efsd_handout_free(struct efsd_handout *handout);
/* The path of the socket; "-": there is none. */
const char *efsd_handout_address(const struct efsd_handout *handout);

#endif
