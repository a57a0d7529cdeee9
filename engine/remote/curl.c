/* SPDX-License-Identifier: Apache-2.0 */
/* curl.c - see curl.h. */
#include "curl.h"

#include "expertfs-private.h"
#include "symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void *load(const char *named)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;
    if (named && *named)
        return strcmp(named, "off") == 0 ? NULL : dlopen(named, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

errint_t efs_curl_open(struct efs_curl *curl, struct efs_error *err)
{
    void *library = load(secure_getenv("EXPERTFS_CURL"));
    if (!library)
        return efs_fail(err, -ENOSYS,
                        "files on servers are read by libcurl, which is not installed\nhint: apt install libcurl4");
#define EFS_CURL_FIND(result, name, arguments)                                                                         \
    if (!efs_symbol(library, "curl_" #name, &curl->name, sizeof(curl->name)))                                          \
        return efs_fail(err, -ENOSYS, "libcurl has no curl_" #name ": 7.75 or later is needed");
    EFS_CURL_CALLS(EFS_CURL_FIND)
#undef EFS_CURL_FIND
    return curl->global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : efs_fail(err, -ENOMEM, "libcurl does not start");
}
