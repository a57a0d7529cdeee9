/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - the table of packed bytes by class and dtype that mkexpertfs prints at the end, as text and as JSON. */
#ifndef TOOLS_ROWS_H
#define TOOLS_ROWS_H

#include "expertfs-pack.h"

struct json_t;

/* Prints the table on stdout, with a row of sums if it has several rows. */
void tools_rows_print(const struct efs_pack_row *rows, unsigned count);
/* A new JSON array; NULL: no memory. */
struct json_t *tools_rows_to_json(const struct efs_pack_row *rows, unsigned count);
/* Reads up to `room` rows of the report in a store; missing fields are 0. Returns their number. */
unsigned tools_rows_from_json(const struct json_t *report, struct efs_pack_row *rows, unsigned room);

#endif
