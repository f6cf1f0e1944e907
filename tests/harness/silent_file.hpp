// SPDX-License-Identifier: Apache-2.0
//
// A file whose server keeps those waiting who ask for some things.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace farcall::test {

inline constexpr std::uint32_t kSilentBytes = 4096;

[[noreturn]] inline void answer_but(std::uint32_t silent, int fuse) {
  ::alarm(60);
  std::vector<char> request(std::size_t{1} << 18);
  for (;;) {
    if (::read(fuse, request.data(), request.size()) <= 0) ::_exit(0);
    fuse_in_header header;
    std::memcpy(&header, request.data(), sizeof header);
    std::vector<char> answer(sizeof(fuse_out_header));
    fuse_out_header out{.len = 0, .error = 0, .unique = header.unique};
    const auto add = [&](const auto& body) {
      const auto* const bytes = reinterpret_cast<const char*>(&body);
      answer.insert(answer.end(), bytes, bytes + sizeof body);
    };
    if (header.opcode == silent) continue;
    if (header.opcode == FUSE_INIT) {
      fuse_init_out init{};
      init.major = FUSE_KERNEL_VERSION;
      init.minor = 31;
      init.max_write = kSilentBytes;
      init.max_readahead = kSilentBytes;
      init.max_background = 16;
      init.congestion_threshold = 12;
      add(init);
    } else if (header.opcode == FUSE_GETATTR) {
      fuse_attr_out attributes{};
      attributes.attr_valid = 1000;
      attributes.attr.ino = 1;
      attributes.attr.size = kSilentBytes;
      attributes.attr.mode = S_IFREG | 0644;
      attributes.attr.nlink = 1;
      add(attributes);
    } else if (header.opcode == FUSE_OPEN) {
      add(fuse_open_out{});
    } else {
      out.error = -ENOSYS;
    }
    out.len = static_cast<std::uint32_t>(answer.size());
    std::memcpy(answer.data(), &out, sizeof out);
    if (::write(fuse, answer.data(), answer.size()) < 0) ::_exit(1);
  }
}

// Mounts one over `file`, for this process's namespace, that a child of this process serves, but
// for requests of the kind `silent`. Returns an errno value.
inline int serve_file(const std::string& file, std::uint32_t silent) {
  const int fuse = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fuse < 0) return errno;
  const std::string options =
      "fd=" + std::to_string(fuse) + ",rootmode=100644,user_id=0,group_id=0";
  if (::mount("x", file.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return errno;
  if (::fork() == 0) answer_but(silent, fuse);
  ::close(fuse);
  return 0;
}

}  // namespace farcall::test
