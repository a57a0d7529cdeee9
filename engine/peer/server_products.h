/* SPDX-License-Identifier: Apache-2.0 */
/* server_products.h - a server's answer to a request for products of single matrices. */
#ifndef EFS_SERVER_PRODUCTS_H
#define EFS_SERVER_PRODUCTS_H

#include "wire.h"

/* Computes the products of the request on the team; vectors: room for [pairs][rows]. One call at a time. Blocks.
 * -ENOENT: no such expert; -EINVAL: no such matrix, or of another shape; the errors of efs_client_begin(),
 * efs_client_wait_any() and efs_product(). */
errint_t efs_server_products(struct efs_client *client, struct efs_team *team, const struct efs_wire_work *work,
                             float *vectors);

#endif
