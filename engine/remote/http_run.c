/* SPDX-License-Identifier: Apache-2.0 */
/* http_run.c - see http.h: starts requests when their time has come, and lets libcurl send and receive. */
#include "http.h"

#include "expertfs-clock-private.h"

static void note_flow(struct efs_http *h, const struct efs_http_request *r)
{
    curl_off_t begun_us = 0, first_us = 0;
    unsigned running = 0;
    h->curl.easy_getinfo(r->easy, CURLINFO_PRETRANSFER_TIME_T, &begun_us);
    h->curl.easy_getinfo(r->easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        running += h->requests[i].running;
    uint64_t latency = first_us > begun_us ? (uint64_t)(first_us - begun_us) * 1000 : 1;
    efs_http_flow_note(&h->flow, efs_now_ns(), latency, r->done, running == 0);
    h->b.info.depth = efs_http_flow_depth(&h->flow);
}

void efs_http_perform(struct efs_http *h)
{
    int running, left;
    CURLMsg *message;
    h->curl.multi_perform(h->multi, &running);
    while ((message = h->curl.multi_info_read(h->multi, &left))) {
        struct efs_http_request *r = NULL;
        const CURLcode code = message->data.result;
        if (message->msg != CURLMSG_DONE)
            continue;
        h->curl.easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        efs_http_request_ended(r, code);
        if (r->over && r->result > 0)
            note_flow(h, r);
    }
}

int efs_http_request_due(struct efs_http_request *r, uint64_t now_ns)
{
    if (r->over || r->running)
        return EFS_HTTP_WAIT_MS;
    if (r->due_ns > now_ns)
        return (int)((r->due_ns - now_ns) / 1000000) + 1;
    efs_http_request_start(r);
    return r->over ? 0 : EFS_HTTP_WAIT_MS;
}
