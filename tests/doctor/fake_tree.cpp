// SPDX-License-Identifier: Apache-2.0
#include "doctor/fake_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace farcall::test {
namespace {

constexpr const char* kLimits =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             96364                96364                processes \n"
    "Max open files            20000                20000                files     \n"
    "Max locked memory         8388608              8388608              bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n"
    "Max msgqueue size         819200               819200               bytes     \n"
    "Max realtime priority     50                   50                   \n";

std::string with(const std::string& field, const std::string& usual,
                 const std::string& changed_field, const std::string& value) {
  return field + ":\t" + (field == changed_field ? value : usual) + "\n";
}

}  // namespace

FakeTree& FakeTree::file(const std::string& path, std::string_view contents) {
  const std::filesystem::path full = root_.path() + path;
  std::filesystem::create_directories(full.parent_path());
  std::ofstream(full, std::ios::binary) << contents;
  return *this;
}

FakeTree& FakeTree::link(const std::string& path, const std::string& target) {
  const std::filesystem::path full = root_.path() + path;
  std::filesystem::create_directories(full.parent_path());
  std::filesystem::remove(full);
  std::filesystem::create_symlink(target, full);
  return *this;
}

FakeTree& FakeTree::process(int pid, const std::string& name) {
  const std::string directory = "/proc/" + std::to_string(pid);
  file(directory + "/status", status_of(pid, name));
  file(directory + "/stat", stat_of(pid, name, 0, 0));
  file(directory + "/maps", "");
  maps(pid,
       "7f0000000000-7f0000001000 r-xp 00000000 08:01 77 /usr/lib/farcall/libfarcall-preload.so");
  file(directory + "/limits", kLimits);
  file(directory + "/environ", "");
  return link(directory + "/ns/net", "net:[1]");
}

FakeTree& FakeTree::maps(int pid, const std::string& line) {
  std::ofstream(root_.path() + "/proc/" + std::to_string(pid) + "/maps", std::ios::app)
      << line << "\n";
  return *this;
}

FakeTree& FakeTree::descriptor(int pid, int fd, const std::string& target) {
  return link("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd), target);
}

std::string status_of(int pid, const std::string& name, const std::string& changed_field,
                      const std::string& value) {
  const auto line = [&](const std::string& field, const std::string& usual) {
    return with(field, usual, changed_field, value);
  };
  return "Name:\t" + name + "\n" + line("State", "S (sleeping)") + "Pid:\t" + std::to_string(pid) +
         "\n" + line("PPid", "1") + line("TracerPid", "0") + line("Uid", "1000\t1000\t1000\t1000") +
         line("CapEff", "0000000000000000") + line("Seccomp", "0") +
         line("Cpus_allowed_list", "0-3");
}

std::string stat_of(int pid, const std::string& name, int nice, int policy) {
  std::string text = std::to_string(pid) + " (" + name + ") S";
  for (int number = 4; number <= 52; ++number)  // as proc(5) numbers them
    text += " " + std::to_string(number == 19 ? nice : number == 41 ? policy : 0);
  return text + "\n";
}

const doctor::Finding* find(const doctor::Findings& findings, std::string_view id) {
  const auto found = std::ranges::find(findings, id, &doctor::Finding::id);
  return found == findings.end() ? nullptr : &*found;
}

std::string ids(const doctor::Findings& findings) {
  std::string all;
  for (const doctor::Finding& finding : findings) all += finding.id + " ";
  return all;
}

void expect_sentences(const doctor::Findings& findings) {
  const auto is_sentence = [](const std::string& text) {
    return text.size() > 10 && text.ends_with('.') && !text.ends_with("..") &&
           text.find("  ") == std::string::npos;
  };
  for (const doctor::Finding& finding : findings) {
    EXPECT_FALSE(finding.about.empty()) << finding.id;
    EXPECT_TRUE(is_sentence(finding.cause)) << finding.id << ": " << finding.cause;
    EXPECT_TRUE(is_sentence(finding.cure)) << finding.id << ": " << finding.cure;
  }
}

}  // namespace farcall::test
