/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.c - writes and reads the profile of a machine and a store as JSON.
 */
#include "expertfs-private.h"
#include "expertfs-profile-private.h"

#include "state_file.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 1e18 /* above any plausible number of a profile */

/* ---- path --------------------------------------------------------------------------------------------------- */

errint_t efs_profile_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err)
{
    return efs_state_path("profile", content_hash, "json", path, room, err);
}

bool efs_profile_is_steady(const struct efs_profile *profile)
{
    return profile->disk_spread <= EFS_PROFILE_SPREAD_MAX && profile->decode_spread <= EFS_PROFILE_SPREAD_MAX;
}

/* ---- saving ------------------------------------------------------------------------------------------------- */

char *efs_profile_json(const struct efs_profile *p)
{
    char hash[24];
    snprintf(hash, sizeof(hash), "%016" PRIx64, p->content_hash);
    json_t *json =
        json_pack("{s:s, s:I, s:I, s:b, s:s}", "content_hash", hash, "measured_at", (json_int_t)p->measured_at,
                  "device", (json_int_t)p->device, "direct_io", p->direct_io, "cpu_path", p->cpu_path);
#define PUT(name, help)                                                                                                \
    if (json && json_object_set_new(json, #name, json_real(p->name)) != 0) {                                           \
        json_decref(json);                                                                                             \
        json = NULL;                                                                                                   \
    }
    EFS_PROFILE_NUMBERS(PUT)
#undef PUT
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(json);
    return text;
}

errint_t efs_profile_save(const struct efs_profile *profile, struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    errint_t rc = efs_profile_path(profile->content_hash, path, sizeof(path), err);
    if (rc < 0)
        return rc;
    char *text = efs_profile_json(profile);
    if (!text)
        return efs_fail(err, -ENOMEM, "%s: no memory", path);
    rc = efs_state_save(path, text, strlen(text), err);
    free(text);
    return rc;
}

/* ---- loading ------------------------------------------------------------------------------------------------ */

/* Checks the numbers that a plan divides by, and those with an upper limit. */
static bool profile_plausible(const struct efs_profile *p)
{
    return p->layers >= 1 && p->layers <= 65536 && p->experts >= 1 && p->experts <= 65536 && p->tensors >= 1 &&
           p->shards >= 1 && p->workers >= 1 && p->workers <= 65536 && p->full_bytes >= 1 && p->coded_bytes >= 1 &&
           p->sm_bytes >= 1 && p->rho <= 16 && p->disk_bytes_per_second >= 1 && p->decode_bytes_per_second >= 1;
}

/* In a profile of another version: the first number that it lacks. NULL: none, or json is not a profile. */
static const char *missing_number(const json_t *json)
{
    if (!json_object_get(json, "content_hash"))
        return NULL;
#define MISSING(name, help)                                                                                            \
    if (!json_object_get(json, #name))                                                                                 \
        return #name;
    EFS_PROFILE_NUMBERS(MISSING)
#undef MISSING
    return NULL;
}

static const char *read_json(const json_t *json, struct efs_profile *p)
{
    const char *hash = json_string_value(json_object_get(json, "content_hash"));
    const char *cpu = json_string_value(json_object_get(json, "cpu_path"));
    char *end;
    if (!json_is_object(json))
        return "not an object";
    if (hash) {
        errno = 0;
        p->content_hash = strtoull(hash, &end, 16);
        if (errno || *end || end == hash)
            return "content_hash is not a hexadecimal number";
    }
    p->measured_at = json_integer_value(json_object_get(json, "measured_at"));
    p->device = (uint64_t)json_integer_value(json_object_get(json, "device"));
    p->direct_io = json_is_true(json_object_get(json, "direct_io"));
    snprintf(p->cpu_path, sizeof(p->cpu_path), "%s", cpu ? cpu : "");
#define GET(name, help)                                                                                                \
    {                                                                                                                  \
        const json_t *number = json_object_get(json, #name);                                                           \
        p->name = json_number_value(number);                                                                           \
        if (!json_is_number(number) || !(p->name >= 0) || !(p->name <= NUMBER_MAX))                                    \
            return #name " is missing or not a number from 0 to 1e18";                                                 \
    }
    EFS_PROFILE_NUMBERS(GET)
#undef GET
    return profile_plausible(p) ? NULL : "a number is out of bounds";
}

errint_t efs_profile_load(const char *path, struct efs_profile *profile, struct efs_error *err)
{
    json_error_t where;
    struct stat st;
    *profile = (struct efs_profile){0};
    int fd = efs_regular_open_path(path, &st, err);
    if (fd < 0)
        return fd;
    json_t *json = json_loadfd(fd, JSON_REJECT_DUPLICATES, &where);
    efs_sys_close(fd);
    if (!json)
        return efs_fail(err, -EUCLEAN, "%s:%d: %s", path, where.line, where.text);
    const char *missing = missing_number(json);
    const char *wrong = missing ? NULL : read_json(json, profile);
    json_decref(json);
    if (missing)
        return efs_fail(err, -ESTALE, "%s: the profile of another version, without %s", path, missing);
    return wrong ? efs_fail(err, -EUCLEAN, "%s: not a profile: %s", path, wrong) : 0;
}
