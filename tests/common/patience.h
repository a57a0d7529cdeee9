/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EFS_TEST_PATIENCE_H
#define EFS_TEST_PATIENCE_H

/* Limit of a wait for what must happen, which ends at once when it happens: a sanitizer on a slow, busy processor may
 * need 20 times as long as a build without one on an idle one. */
#define PATIENCE_SECONDS 240
#define PATIENCE_MS (1000 * PATIENCE_SECONDS)

#endif
