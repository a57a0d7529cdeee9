/* SPDX-License-Identifier: Apache-2.0 */
/*
 * points.h - numbers in texts that programs read have a point, whatever the locale of the program that links us says.
 *
 *     EFS_WITH_POINTS;    at the start of a block: until its end, printf(3) and strtod(3) of this thread keep to it
 */
#ifndef EFS_POINTS_H
#define EFS_POINTS_H

#include <locale.h>

/* The locale "C" is part of the C library: nothing is allocated, and it cannot fail there. Where it does, nothing
 * changes. */
static inline locale_t efs_points_begin(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void efs_points_end(const locale_t *before)
{
    uselocale(*before);
}

#define EFS_WITH_POINTS                                                                                                \
    const locale_t efs_locale_before __attribute__((cleanup(efs_points_end), unused)) = efs_points_begin()

#endif
