/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - what is told of a run beside its figures. */
#include "replay.h"

#include <stdio.h>
#include <string.h>

void replay_record_note(struct replay_run_record *record, const char *what, const char *more)
{
    size_t used = strlen(record->note);
    snprintf(record->note + used, sizeof(record->note) - used, "%s%s%s", used ? "; " : "", what, more);
}
