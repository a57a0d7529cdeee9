/* SPDX-License-Identifier: Apache-2.0 */
/* pack_estimate.c - whether a source can be packed, and what that would save; reads no weights. */
#include "expertfs-packing-private.h"
#include "pack.h"

#include <errno.h>
#include <string.h>

errint_t efs_pack_check(const char *src, struct efs_catalog *catalog, struct efs_error *err)
{
    bool parts;
    errint_t rc = efs_catalog_read_parts(src, NULL, catalog, &parts, err);
    if (rc < 0)
        return rc;
    rc = efs_catalog_check(parts ? catalog->root : src, catalog, err);
    if (rc < 0)
        efs_catalog_free(catalog);
    return rc;
}

double efs_pack_ratio(enum efs_dtype dtype)
{
    static const struct {
        const char *dtype;
        double ratio;
    } measured[] = {{"BF16", 0.675}, {"F16", 0.855}, {"F32", 0.84}, {"F8_E4M3", 0.84}, {"F8_E5M2", 0.75}};
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++)
        if (strcmp(efs_dtype_name(dtype), measured[i].dtype) == 0)
            return measured[i].ratio;
    return 1;
}

errint_t efs_pack_estimate(const char *src, double *saved, struct efs_error *err)
{
    struct efs_catalog catalog;
    double bytes = 0, coded = 0;
    bool parts;
    errint_t rc = efs_catalog_read_parts(src, NULL, &catalog, &parts, err);
    if (rc < 0)
        return rc;
    if (catalog.expert_count == 0)
        rc = efs_fail(err, -ENOENT, "%s: no experts", src);
    for (size_t f = 0; f < catalog.file_count; f++)
        bytes += (double)catalog.files[f].bytes;
    coded = bytes;
    for (size_t t = 0; t < catalog.tensor_count; t++)
        coded -= (double)catalog.tensors[t].bytes * (1 - efs_pack_ratio(catalog.tensors[t].dtype));
    *saved = bytes > 0 ? 1 - coded / bytes : 0;
    efs_catalog_free(&catalog);
    return rc;
}
