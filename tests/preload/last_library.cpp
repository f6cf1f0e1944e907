// SPDX-License-Identifier: Apache-2.0
//
// A library whose destructor uses a connection.

extern void (*when_last_library_ends)();
void (*when_last_library_ends)() = nullptr;

namespace {

[[gnu::destructor]] void end() {
  if (when_last_library_ends != nullptr) when_last_library_ends();
}

}  // namespace
