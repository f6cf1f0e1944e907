// SPDX-License-Identifier: Apache-2.0
#include "c/translate.hpp"

#include <exception>
#include <stdexcept>

#include "farcall/farcall.h"

namespace farcall::c {

int translate_exception() noexcept {
  try {
    throw;
  } catch (const std::system_error& error) {  // SystemError, too
    return -error.code().value();
  } catch (const MisuseError&) {
    return -EINVAL;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (const std::length_error&) {
    return -ENOMEM;
  } catch (...) {
    return -EIO;
  }
}

WaitMode wait_mode_of(int wait) {
  switch (wait) {
    case FARCALL_WAIT_ADAPTIVE: return WaitMode::adaptive;
    case FARCALL_WAIT_SPIN: return WaitMode::spin;
    case FARCALL_WAIT_BLOCK: return WaitMode::block;
    default: throw SystemError(EINVAL, "how to wait");
  }
}

}  // namespace farcall::c

const char* farcall_version() { return FARCALL_VERSION; }

void farcall_note_signal() { farcall::note_signal(); }
