/* mkexpertfs.h - what the parts of mkexpertfs share. */
#ifndef MKEXPERTFS_H
#define MKEXPERTFS_H

#include "libexpertfs.h"

/* The closing table, and a line of sizes and speed, on stdout. */
void print_report(const struct efs_pack_report *report, const char *out);
/* The same as one JSON object. false: no memory. */
bool print_report_json(const struct efs_pack_report *report, const char *out);

#endif
