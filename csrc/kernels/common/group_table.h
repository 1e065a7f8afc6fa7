/* Shared memory of the table of groups (group_table.cuh): of each group the first row, and how many tiles along the
 * rows lie before it; both behind the last. C11 and device code. */
#ifndef NVFP4_COMMON_GROUP_TABLE_H
#define NVFP4_COMMON_GROUP_TABLE_H

#define NVFP4_MAX_GROUPS  1024 /* as in nvfp4.h */
#define GROUP_TABLE_BYTES (2 * 4 * (NVFP4_MAX_GROUPS + 1))

#endif
