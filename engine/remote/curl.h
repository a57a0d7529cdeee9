/* SPDX-License-Identifier: Apache-2.0 */
/*
 * curl.h - the calls of libcurl that are used. It is loaded when a file on a server is opened, so that nothing else
 * needs it. The environment variable EXPERTFS_CURL names another library, or "off".
 */
#ifndef EFS_CURL_H
#define EFS_CURL_H

#include "expertfs.h"

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

/* Result, name without "curl_", arguments. */
#define EFS_CURL_CALLS(X)                                                                                              \
    X(CURLcode, global_init, (long flags))                                                                             \
    X(void, global_cleanup, (void))                                                                                    \
    X(CURL *, easy_init, (void))                                                                                       \
    X(CURLcode, easy_setopt, (CURL * easy, CURLoption option, ...))                                                    \
    X(CURLcode, easy_getinfo, (CURL * easy, CURLINFO info, ...))                                                       \
    X(const char *, easy_strerror, (CURLcode code))                                                                    \
    X(void, easy_reset, (CURL * easy))                                                                                 \
    X(void, easy_cleanup, (CURL * easy))                                                                               \
    X(CURLM *, multi_init, (void))                                                                                     \
    X(CURLMcode, multi_setopt, (CURLM * multi, CURLMoption option, ...))                                               \
    X(CURLMcode, multi_add_handle, (CURLM * multi, CURL * easy))                                                       \
    X(CURLMcode, multi_remove_handle, (CURLM * multi, CURL * easy))                                                    \
    X(CURLMcode, multi_perform, (CURLM * multi, int *running))                                                         \
    X(CURLMcode, multi_poll, (CURLM * multi, struct curl_waitfd * fds, unsigned count, int timeout_ms, int *ready))    \
    X(CURLMsg *, multi_info_read, (CURLM * multi, int *left))                                                          \
    X(CURLMcode, multi_cleanup, (CURLM * multi))                                                                       \
    X(struct curl_slist *, slist_append, (struct curl_slist * list, const char *text))                                 \
    X(void, slist_free_all, (struct curl_slist * list))

struct efs_curl {
#define EFS_CURL_FIELD(result, name, arguments) result(*name) arguments;
    EFS_CURL_CALLS(EFS_CURL_FIELD)
#undef EFS_CURL_FIELD
};

/* Loads the library, which stays loaded. -ENOSYS with err: it is not installed, or too old. */
errint_t efs_curl_open(struct efs_curl *curl, struct efs_error *err);

#endif
