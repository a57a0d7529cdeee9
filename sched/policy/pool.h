/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - the cache states of an expert, named after the pools. */
#ifndef EFS_POOL_H
#define EFS_POOL_H

/*
 * The pools of ZipMoE 3.4, best first, which is also the order of ranks: full, both components coded, only SM, only E,
 * missing. The values are those of enum efs_task_state.
 */
enum efs_pool { EFS_POOL_F, EFS_POOL_C, EFS_POOL_S, EFS_POOL_E, EFS_POOL_M };
#define EFS_POOLS 4 /* without M, which holds no bytes */

#endif
