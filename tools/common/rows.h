/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - the table of classes and dtypes that packing closes with, as text and as JSON. */
#ifndef TOOLS_ROWS_H
#define TOOLS_ROWS_H

#include "expertfs-pack.h"

struct json_t;

/* The table on stdout. */
void tools_rows_print(const struct efs_pack_row *rows, unsigned count);
/* As a JSON array; NULL: no memory. */
struct json_t *tools_rows_to_json(const struct efs_pack_row *rows, unsigned count);
/* Rows of the JSON object that a store holds; fields that are missing are 0. Returns how many. */
unsigned tools_rows_from_json(const struct json_t *report, struct efs_pack_row *rows, unsigned room);

#endif
