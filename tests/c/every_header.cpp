// SPDX-License-Identifier: Apache-2.0
#include "every_header.c"
