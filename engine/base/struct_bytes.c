/* SPDX-License-Identifier: Apache-2.0 */
/* struct_bytes.c - efs_struct_bytes(): the sizes of the public structs, by name. */
#include "expertfs-compute.h"
#include "expertfs-gpu.h"
#include "expertfs-pack.h"
#include "expertfs-peer.h"
#include "expertfs-stats.h"

#include <string.h>

#define STRUCT(name)                                                                                                   \
    {                                                                                                                  \
#name, sizeof(struct name)                                                                                     \
    }

static const struct {
    const char *name;
    size_t bytes;
} structs[] = {
    STRUCT(efs_error),          STRUCT(efs_store_info),
    STRUCT(efs_client_options), STRUCT(efs_need),
    STRUCT(efs_coded_shard),    STRUCT(efs_tensor),
    STRUCT(efs_routing),        STRUCT(efs_expert_id),
    STRUCT(efs_file_info),      STRUCT(efs_expert_info),
    STRUCT(efs_stats),          STRUCT(efs_route_to),
    STRUCT(efs_mixture),        STRUCT(efs_router_output),
    STRUCT(efs_gpu_options),    STRUCT(efs_gpu_stats),
    STRUCT(efs_pack_options),   STRUCT(efs_pack_row),
    STRUCT(efs_pack_report),    STRUCT(efs_listed_expert),
    STRUCT(efs_peer_stats),     STRUCT(efs_peer_server_stats),
    STRUCT(efs_peer_products),
};

size_t efs_struct_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof(structs) / sizeof(structs[0]); i++)
        if (strcmp(structs[i].name, name) == 0)
            return structs[i].bytes;
    return 0;
}
