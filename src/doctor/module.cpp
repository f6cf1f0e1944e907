// SPDX-License-Identifier: Apache-2.0
#include "doctor/module.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stplr.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::doctor {
namespace {

constexpr const char* kDevice = "/dev/stplr";

}  // namespace

Module look_at_module(const Tree& tree) {
  Module module;
  module.loaded = tree.exists("/sys/module/stplr") || tree.exists(kDevice);
  const UniqueFd device(
      ::open(tree.place(kDevice).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!device) {
    module.error = errno;
    return module;
  }
  struct ::stplr_info info {};
  if (::ioctl(device.get(), STPLR_INFO, &info) == 0)
    module.interface = info.interface;
  else
    module.error = errno;
  return module;
}

void judge(const Module& module, bool wanted, Findings& findings) {
  const auto add = [&](const char* id, Severity severity, std::string cause, std::string cure) {
    findings.push_back({id, severity, kThisMachine, std::move(cause), std::move(cure)});
  };
  const char* const shared = "or set FARCALL_ENGINE=shared, which needs no module.";
  if (!module.loaded)
    add("module-missing", wanted ? Severity::fault : Severity::note,
        wanted
            ? "FARCALL_ENGINE asks for the kernel module stplr, which is not loaded: doors and "
              "channels cannot be made."
            : "The kernel module stplr is not loaded; doors and messages use shared memory, which "
              "needs no privilege.",
        wanted ? fmt::format("`modprobe stplr` (package stplr-dkms), {}", shared)
               : "Nothing need be done; `modprobe stplr` brings priority inheritance and copies by "
                 "the "
                 "kernel.");
  else if (module.error != 0)
    add("module-access", wanted ? Severity::fault : Severity::warning,
        fmt::format("The kernel module stplr is loaded, but {} cannot be used by this user ({}).",
                    kDevice, errno_name(module.error)),
        fmt::format("Join its group (`usermod -aG stplr USER`, then log in anew), {}", shared));
  else if (module.interface != STPLR_INTERFACE)
    add("module-version", wanted ? Severity::fault : Severity::warning,
        fmt::format(
            "The kernel module stplr has interface {}, and this farcall is made for {}: it is "
            "not used.",
            module.interface, STPLR_INTERFACE),
        fmt::format("Install farcall and the module of one version, and load the module anew, {}",
                    shared));
}

}  // namespace farcall::doctor
