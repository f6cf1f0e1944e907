// SPDX-License-Identifier: Apache-2.0
#include "tool/run/program.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::tool::run {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr Elf64_Half kMachine = EM_RISCV;
#else
#error "which ELF machine is this?"
#endif

// As the kernel takes the first line of a script: BINPRM_BUF_SIZE.
constexpr std::size_t kScriptLine = 256;
constexpr int kMostScripts = 5;  // a script's interpreter may be a script; so many the kernel takes

// A file, of which pieces are read: it may become shorter meanwhile, and be as long as it says
// without being there. Nothing of it is believed.
class File {
 public:
  explicit File(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw_errno("run " + path);
    check_regular(status, path);
    // Not to wait for anybody, should it be another one by now: a pipe, say.
    fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd_ && ::fstat(fd_.get(), &status) != 0) throw_errno("run " + path);
    check_regular(status, path);
    if (::access(path.c_str(), X_OK) != 0) throw_errno("run " + path);
    mode_ = status.st_mode;
    owner_ = status.st_uid;
    group_ = status.st_gid;
  }
  // It may be run though it may not be read.
  [[nodiscard]] bool readable() const { return static_cast<bool>(fd_); }
  template <class T>
  [[nodiscard]] std::optional<T> at(std::uint64_t offset) const {
    const std::string bytes = text(offset, sizeof(T));
    if (bytes.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  // As much of that as there is, up to kMostText.
  [[nodiscard]] std::string text(std::uint64_t offset, std::uint64_t size) const {
    std::string bytes(std::min<std::uint64_t>(size, kMostText), '\0');
    std::size_t got = 0;
    while (fd_ && got < bytes.size() && offset <= INT64_MAX - kMostText) {
      const ssize_t some = ::pread(fd_.get(), bytes.data() + got, bytes.size() - got,
                                   static_cast<off_t>(offset + got));
      if (some <= 0) break;
      got += static_cast<std::size_t>(some);
    }
    bytes.resize(got);
    return bytes;
  }
  static constexpr std::size_t kMostText = 65'536;
  // As the kernel decides that a program runs with more rights than its caller: the dynamic linker
  // then loads no library that the caller names.
  [[nodiscard]] std::string raises_rights(const std::string& path) const {
    if ((mode_ & S_ISUID) != 0 && owner_ != ::getuid())
      return "it is setuid: the dynamic linker ignores LD_PRELOAD there";
    if ((mode_ & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && group_ != ::getgid())
      return "it is setgid: the dynamic linker ignores LD_PRELOAD there";
    if (::getuid() != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
      return "it has file capabilities: the dynamic linker ignores LD_PRELOAD there";
    return {};
  }

 private:
  static void check_regular(const struct stat& status, const std::string& path) {
    if (!S_ISREG(status.st_mode)) throw SystemError(EACCES, "run " + path + " (no regular file)");
  }

  UniqueFd fd_;
  mode_t mode_ = 0;
  uid_t owner_ = 0;
  gid_t group_ = 0;
};

// The interpreter in "#!/usr/bin/python3 -u", if the file begins so.
std::string interpreter_of(std::string_view bytes) {
  if (!bytes.starts_with("#!")) return {};
  std::string_view line = bytes.substr(2, kScriptLine);
  line = line.substr(0, line.find('\n'));
  constexpr std::string_view kBlank = " \t";
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  std::string name(line.substr(0, line.find_first_of(kBlank)));
  // The kernel starts env, which starts the program that counts.
  if (std::filesystem::path(name).filename() != "env") return name;
  std::istringstream words{std::string(line)};
  std::string word;
  words >> word;
  while (words >> word)
    if (!word.starts_with('-') && word.find('=') == std::string::npos) return find_program(word);
  return name;
}

struct Elf {
  bool readable = false;  // it is a program of this machine
  std::string linker;     // that it asks for; empty: it is static
  bool go = false;
};

// The type and the name of the note that holds a Go program's build id.
constexpr std::string_view kGoNote{"\4\0\0\0Go\0\0", 8};

Elf read_elf(const File& file, const Elf64_Ehdr& header) {
  // A program may have a thousand segments, and say of each that it is as long as any file.
  constexpr unsigned kMostSegments = 256;
  constexpr unsigned kMostNotes = 16;
  Elf elf{.readable = true, .linker = {}, .go = false};
  unsigned notes = 0;
  for (unsigned i = 0; i < std::min<unsigned>(header.e_phnum, kMostSegments); ++i) {
    const auto segment =
        file.at<Elf64_Phdr>(header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
    if (!segment) break;
    if (segment->p_type == PT_INTERP && segment->p_filesz > 1)
      elf.linker =
          file.text(segment->p_offset, std::min<std::uint64_t>(segment->p_filesz - 1, PATH_MAX));
    if (segment->p_type == PT_NOTE && ++notes <= kMostNotes)
      elf.go = elf.go ||
               file.text(segment->p_offset, segment->p_filesz).find(kGoNote) != std::string::npos;
  }
  return elf;
}

constexpr const char* kGo =
    "it is a Go program, which makes system calls itself: the connections that it makes stay plain";

// What speaks against loading a library into this file, which is not a script.
void judge(Program& program, const std::string& path, const File& file) {
  const auto header = file.at<Elf64_Ehdr>(0);
  if (!file.readable()) {
    program.obstacle = Obstacle::not_readable;
    program.reservation = "it may not be read, so that nobody knows whether it is static";
    return;
  }
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) {
    program.obstacle = Obstacle::no_program;
    program.refusal = fmt::format("{} is neither an ELF program nor a script", path);
  } else if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != kMachine) {
    program.obstacle = Obstacle::other_machine;
    program.refusal = fmt::format(
        "{} is built for another architecture (ELF machine {}, {} bits) than the library", path,
        header->e_machine, header->e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32);
  } else {
    const Elf elf = read_elf(file, *header);
    if (elf.linker.empty()) {
      program.obstacle = Obstacle::no_linker;
      program.refusal = fmt::format("{} is linked statically: no library can be loaded into it{}",
                                    path, elf.go ? " (a Go program)" : "");
    } else if (elf.linker.find("ld-musl") != std::string::npos) {
      program.obstacle = Obstacle::other_library;
      program.refusal =
          fmt::format("{} uses another C library ({}) than the library", path, elf.linker);
    } else if (elf.go) {
      program.obstacle = Obstacle::own_calls;
      program.reservation = kGo;
    }
  }
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  std::istringstream places(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string place; std::getline(places, place, ':');) {
    const auto candidate = std::filesystem::path(place.empty() ? "." : place) / name;
    std::error_code unreachable;  // then it is not there
    if (std::filesystem::is_regular_file(candidate, unreachable) &&
        ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  throw SystemError(ENOENT, "run " + name + " (it is in no directory of $PATH)");
}

Program examine(const std::string& name) {
  Program program;
  program.path = find_program(name);
  std::string path = program.path;
  for (int depth = 0; depth <= kMostScripts; ++depth) {
    const File file(path);
    const std::string next = interpreter_of(file.text(0, kScriptLine + 2));
    if (next.empty()) {
      if (const std::string more = file.raises_rights(path); !more.empty()) {
        program.obstacle = Obstacle::more_rights;
        program.refusal = fmt::format("{}: {}", path, more);
      } else {
        judge(program, path, file);
      }
      return program;
    }
    program.interpreter = path = next;
  }
  throw SystemError(ELOOP, "run " + program.path);
}

}  // namespace farcall::tool::run
