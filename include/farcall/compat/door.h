/* SPDX-License-Identifier: Apache-2.0
 *
 * Doors: a function in another process behind a file descriptor. The interface is that of Solaris
 * and illumos; each function has a manual page in section 3, and door(7) is about the whole.
 *
 * Functions return 0 or a descriptor, and -1 with errno set on failure.
 */
#ifndef FARCALL_COMPAT_DOOR_H
#define FARCALL_COMPAT_DOOR_H

/* Strict C89 and C++98 are told of neither long long nor casts in macros. */
#pragma GCC system_header

#include <stddef.h>
#include <sys/types.h>

#include "ucred.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FARCALL_UINT_T
#define FARCALL_UINT_T
typedef unsigned int uint_t;
#endif

typedef unsigned long long door_ptr_t; /* an address in the server */
typedef unsigned long long door_id_t;  /* unique on the machine */
typedef unsigned int door_attr_t;

/* Attributes given to door_create() and door_xcreate(). */
#define DOOR_UNREF 0x01            /* one call when a single reference is left */
#define DOOR_PRIVATE 0x02          /* has server threads of its own */
#define DOOR_UNREF_MULTI 0x10      /* such a call each time */
#define DOOR_REFUSE_DESC 0x40      /* takes no descriptors */
#define DOOR_NO_CANCEL 0x80        /* a client that gives up does not cancel the server thread */
#define DOOR_NO_DEPLETION_CB 0x100 /* door_xcreate() only: makes no threads later */

/* Attributes that door_info() reports. */
#define DOOR_LOCAL 0x04         /* served by this process */
#define DOOR_REVOKED 0x08       /* can no longer be called */
#define DOOR_IS_UNREF 0x20      /* a single reference is left */
#define DOOR_PRIVCREATE 0x200   /* made by door_xcreate(); never reported here */
#define DOOR_DEPLETION_CB 0x400 /* made by door_xcreate(), makes threads when they run out */

/* All that a door may be made with, and all that door_info() may report besides. */
#define DOOR_CREATE_MASK                                                              \
  (DOOR_UNREF | DOOR_PRIVATE | DOOR_UNREF_MULTI | DOOR_REFUSE_DESC | DOOR_NO_CANCEL | \
   DOOR_NO_DEPLETION_CB | DOOR_PRIVCREATE)
#define DOOR_KI_CREATE_MASK (DOOR_UNREF | DOOR_UNREF_MULTI)
#define DOOR_ATTR_MASK (DOOR_CREATE_MASK | DOOR_LOCAL | DOOR_REVOKED | DOOR_IS_UNREF)

/* Of the kernel of Solaris alone. */
#define DOOR_DELAY 0x80000
#define DOOR_UNREF_ACTIVE 0x100000

/* Attributes of what is passed along. */
#define DOOR_DESCRIPTOR 0x10000 /* a file descriptor */
#define DOOR_RELEASE 0x40000    /* the sender's is closed once it is passed */

/* In place of a descriptor. */
#define DOOR_INVAL (-1)
#define DOOR_QUERY (-2) /* door_info(): the door that the calling thread is bound to */

/* `argp` of the call that tells of a single reference left. */
#define DOOR_UNREF_DATA ((void*)1)

/* Parameters of door_getparam() and door_setparam(). */
#define DOOR_PARAM_DESC_MAX 1 /* most descriptors of a request */
#define DOOR_PARAM_DATA_MAX 2 /* most bytes of a request */
#define DOOR_PARAM_DATA_MIN 3 /* fewest bytes of a request */

/* These two are laid out with an alignment of 4, as everywhere. */
#pragma pack(push, 4)

typedef struct door_desc {
  door_attr_t d_attributes;
  union {
    struct {
      int d_descriptor;
      door_id_t d_id; /* of a door that was received */
    } d_desc;
    int d_resv[5];
  } d_data;
} door_desc_t;

typedef struct door_info {
  pid_t di_target;    /* the server; -1 where it has died */
  door_ptr_t di_proc; /* its procedure */
  door_ptr_t di_data; /* its cookie */
  door_attr_t di_attributes;
  door_id_t di_uniquifier;
  int di_resv[4];
} door_info_t;

#pragma pack(pop)

typedef struct door_arg {
  char* data_ptr;        /* in: the request; out: the data of the reply */
  size_t data_size;      /* bytes */
  door_desc_t* desc_ptr; /* in: descriptors to pass; out: descriptors that came */
  uint_t desc_num;
  char* rbuf;   /* where the reply goes, if it fits */
  size_t rsize; /* bytes */
} door_arg_t;

/* How the kernel of Solaris hands a call to a thread, and takes its descriptors back. Here nothing
 * makes use of them. */
struct door_results {
  void* cookie;
  char* data_ptr;
  size_t data_size;
  door_desc_t* desc_ptr;
  size_t desc_num;
  void (*pc)(void);
  int nservers;
  door_info_t* door_info;
};
typedef struct door_return_desc {
  door_desc_t* desc_ptr;
  uint_t desc_num;
} door_return_desc_t;

/* The system calls of Solaris behind the functions below, for those who trace them. */
#define DOOR_CREATE 0
#define DOOR_REVOKE 1
#define DOOR_INFO 2
#define DOOR_CALL 3
#define DOOR_CRED 5 /* before illumos */
#define DOOR_BIND 6
#define DOOR_UNBIND 7
#define DOOR_UNREFSYS 8
#define DOOR_UCRED 9
#define DOOR_RETURN 10
#define DOOR_RETURN_OLD 4 /* before illumos */
#define DOOR_GETPARAM 11
#define DOOR_SETPARAM 12

typedef struct door_cred {
  uid_t dc_euid;
  gid_t dc_egid;
  uid_t dc_ruid;
  gid_t dc_rgid;
  pid_t dc_pid;
  int dc_resv[4];
} door_cred_t;

typedef void door_server_procedure_t(void* cookie, char* argp, size_t arg_size, door_desc_t* dp,
                                     uint_t n_desc);
typedef void door_server_func_t(door_info_t* info);
typedef int door_xcreate_server_func_t(door_info_t* info, void* (*startf)(void*), void* startarg,
                                       void* cookie);
typedef void door_xcreate_thrsetup_func_t(void* cookie);

int door_create(door_server_procedure_t* procedure, void* cookie, uint_t attributes);
int door_xcreate(door_server_procedure_t* procedure, void* cookie, uint_t attributes,
                 door_xcreate_server_func_t* create_thread, door_xcreate_thrsetup_func_t* set_up,
                 void* create_cookie, int nthread);
int door_revoke(int d);
int door_info(int d, door_info_t* info);
int door_call(int d, door_arg_t* arguments);
int door_return(char* data_ptr, size_t data_size, door_desc_t* desc_ptr, uint_t desc_num);
int door_cred(door_cred_t* credentials);
int door_ucred(ucred_t** credentials);
int door_bind(int d);
int door_unbind(void);
int door_getparam(int d, int param, size_t* value);
int door_setparam(int d, int param, size_t value);
door_server_func_t* door_server_create(door_server_func_t* create_thread);

/* Also in <stropts.h> and <unistd.h>. */
int fattach(int d, const char* path);
int fdetach(const char* path);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_DOOR_H */
