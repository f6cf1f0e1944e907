// SPDX-License-Identifier: Apache-2.0
//
// Peers whose libraries do something as soon as they are loaded: they take time, set handlers of
// signals, look for hardware. Each of them is a module of its own, which is loaded by the client's
// process of its row and by nobody else. modules.cpp has their rows; the files that include this
// are the modules.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "compare/row.hpp"
#include "compare/rows/introduction.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

// What a module exports: makes the connection of one of its rows, which belongs to the caller.
extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions& conditions, const farcall::compare::RowInfo& row);

namespace farcall::compare {

// Rows of peers that are modules, or the word that they are absent; of pairs or of broadcasts.
void add_modules(RowList& list, Workload workload);

}  // namespace farcall::compare
