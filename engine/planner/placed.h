/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placed.h - the experts that a placement (expertfs-placement(5)) puts on this server: pinned, and read in idle time.
 *
 * A thread of its own (placed_thread.h) looks once a second whether there is another one; the plan thread reads the
 * experts. A placement that is damaged, cut or of another store is one warning, and the one before stays.
 */
#ifndef EFS_PLACED_H
#define EFS_PLACED_H

#include "efs.h"

/* Starts the thread; the file or object of options.placement may come later. Without the option it does nothing. 0 or
 * -errno with err. */
errint_t efs_placed_open(struct efs *fs, struct efs_error *err);
/* Writes what is left of the counts, and ends the thread. Without lock. */
void efs_placed_stop(struct efs *fs);
void efs_placed_close(struct efs *fs);
void efs_placed_close_in_child(struct efs *fs);

/* Nanoseconds until the next efs_placed_turn(); UINT64_MAX: no placement. Lock held. */
uint64_t efs_placed_delay(const struct efs *fs);
/* On the plan thread, without lock: reads experts while nothing else reads. */
void efs_placed_turn(struct efs *fs);

/* The user pins the expert, or ends its pin: no placement changes that pin from now on. Lock held. */
void efs_placed_user_pins(struct efs *fs, uint32_t expert);

/* Has the counts of this server written, to the pool if the placement is there. Whether they are also saved in the
 * state directory, which may be on the folder of a network. Without lock. */
struct efs_history;
bool efs_placed_counts(struct efs *fs, const struct efs_history *history);

/* The text "placement" of efs_describe(), with its errors. Without lock. */
errint_t efs_placed_describe(struct efs *fs, char **text, size_t *bytes);

#endif
