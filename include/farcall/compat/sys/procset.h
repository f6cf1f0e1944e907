/* SPDX-License-Identifier: Apache-2.0
 *
 * What ucred_get() takes for the process that calls.
 */
#include <ucred.h>
