/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda_old.c - the fake driver without the calls of EFS_CU_OPTIONAL_CALLS. */
#define FAKE_CUDA_OLD
#include "fake_cuda.c"
