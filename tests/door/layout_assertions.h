/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions for C and C++ alike; the headers of doors stand before this one.
 */
#ifndef FARCALL_TESTS_DOOR_LAYOUT_H
#define FARCALL_TESTS_DOOR_LAYOUT_H

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#define LAYOUT(condition) static_assert(condition, #condition)
#define LAYOUT_ALIGN(type) alignof(type)
#else
#define LAYOUT(condition) _Static_assert(condition, #condition)
#define LAYOUT_ALIGN(type) _Alignof(type)
#endif

LAYOUT(sizeof(door_ptr_t) == 8 && (door_ptr_t)-1 > 0);
LAYOUT(sizeof(door_id_t) == 8 && (door_id_t)-1 > 0);
LAYOUT(sizeof(door_attr_t) == 4 && (door_attr_t)-1 > 0);
LAYOUT(sizeof(uint_t) == 4 && (uint_t)-1 > 0);

LAYOUT(sizeof(door_desc_t) == 24 && LAYOUT_ALIGN(door_desc_t) == 4);
LAYOUT(offsetof(door_desc_t, d_attributes) == 0);
LAYOUT(offsetof(door_desc_t, d_data) == 4);
LAYOUT(offsetof(door_desc_t, d_data.d_desc.d_descriptor) == 4);
LAYOUT(offsetof(door_desc_t, d_data.d_desc.d_id) == 8);
LAYOUT(offsetof(door_desc_t, d_data.d_resv) == 4);
LAYOUT(sizeof(((door_desc_t*)0)->d_data.d_resv) == 5 * sizeof(int));

LAYOUT(sizeof(door_info_t) == 48 && LAYOUT_ALIGN(door_info_t) == 4);
LAYOUT(offsetof(door_info_t, di_target) == 0);
LAYOUT(offsetof(door_info_t, di_proc) == 4);
LAYOUT(offsetof(door_info_t, di_data) == 12);
LAYOUT(offsetof(door_info_t, di_attributes) == 20);
LAYOUT(offsetof(door_info_t, di_uniquifier) == 24);
LAYOUT(offsetof(door_info_t, di_resv) == 32);
LAYOUT(sizeof(((door_info_t*)0)->di_resv) == 4 * sizeof(int));

LAYOUT(sizeof(door_arg_t) == 48 && LAYOUT_ALIGN(door_arg_t) == 8);
LAYOUT(offsetof(door_arg_t, data_ptr) == 0);
LAYOUT(offsetof(door_arg_t, data_size) == 8);
LAYOUT(offsetof(door_arg_t, desc_ptr) == 16);
LAYOUT(offsetof(door_arg_t, desc_num) == 24);
LAYOUT(offsetof(door_arg_t, rbuf) == 32);
LAYOUT(offsetof(door_arg_t, rsize) == 40);

LAYOUT(sizeof(door_cred_t) == 36);
LAYOUT(offsetof(door_cred_t, dc_euid) == 0);
LAYOUT(offsetof(door_cred_t, dc_egid) == 4);
LAYOUT(offsetof(door_cred_t, dc_ruid) == 8);
LAYOUT(offsetof(door_cred_t, dc_rgid) == 12);
LAYOUT(offsetof(door_cred_t, dc_pid) == 16);
LAYOUT(offsetof(door_cred_t, dc_resv) == 20);

LAYOUT(DOOR_UNREF == 0x01 && DOOR_PRIVATE == 0x02 && DOOR_UNREF_MULTI == 0x10);
LAYOUT(DOOR_REFUSE_DESC == 0x40 && DOOR_NO_CANCEL == 0x80 && DOOR_NO_DEPLETION_CB == 0x100);
LAYOUT(DOOR_LOCAL == 0x04 && DOOR_REVOKED == 0x08 && DOOR_IS_UNREF == 0x20);
LAYOUT(DOOR_DEPLETION_CB == 0x400);
LAYOUT(DOOR_DESCRIPTOR == 0x10000 && DOOR_RELEASE == 0x40000);
LAYOUT(DOOR_PRIVCREATE == 0x200 && DOOR_DELAY == 0x80000 && DOOR_UNREF_ACTIVE == 0x100000);
LAYOUT(DOOR_CREATE_MASK == 0x3d3 && DOOR_ATTR_MASK == 0x3ff && DOOR_KI_CREATE_MASK == 0x11);
LAYOUT(DOOR_CREATE == 0 && DOOR_REVOKE == 1 && DOOR_INFO == 2 && DOOR_CALL == 3);
LAYOUT(DOOR_RETURN_OLD == 4 && DOOR_CRED == 5 && DOOR_BIND == 6 && DOOR_UNBIND == 7);
LAYOUT(DOOR_UNREFSYS == 8 && DOOR_UCRED == 9 && DOOR_RETURN == 10);
LAYOUT(DOOR_GETPARAM == 11 && DOOR_SETPARAM == 12);
LAYOUT(sizeof(struct door_results) == 64 && offsetof(struct door_results, door_info) == 56);
LAYOUT(sizeof(door_return_desc_t) == 16 && offsetof(door_return_desc_t, desc_num) == 8);
LAYOUT(DOOR_INVAL == -1 && DOOR_QUERY == -2);
LAYOUT(DOOR_PARAM_DESC_MAX == 1 && DOOR_PARAM_DATA_MAX == 2 && DOOR_PARAM_DATA_MIN == 3);

#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

#endif /* FARCALL_TESTS_DOOR_LAYOUT_H */
