/* SPDX-License-Identifier: Apache-2.0 */
/* image.h - the kernels of kernels/cuda/ as nvcc makes them (fatbin, PTX of the oldest architecture among it), in the
 * library; nothing, where it was built without nvcc. */
#ifndef EFS_IMAGE_H
#define EFS_IMAGE_H

#include <stdint.h>

extern const unsigned char efs_gpu_image[];
extern const uint64_t efs_gpu_image_bytes;

#endif
