// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target where there is no libFuzzer: for FARCALL_FUZZ_SECONDS (5) with inputs from a
// generator that always starts the same, or once with each file named. An input that a target does
// not survive is left in the file "crash-input".
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "farcall/wait.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::uint8_t> input;

void keep_input(int signal) {
  if (std::FILE* file = std::fopen("crash-input", "wb")) {
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// Small numbers and single bits lead further than noise.
void generate(std::minstd_rand& random, std::vector<std::uint8_t>& into) {
  if (!into.empty() && random() % 4 != 0) {
    for (std::size_t count = 1 + random() % 6; count > 0; --count) {
      std::uint8_t& byte = into[random() % into.size()];
      switch (random() % 3) {
        case 0: byte ^= static_cast<std::uint8_t>(1U << random() % 8); break;
        case 1: byte = static_cast<std::uint8_t>(random() % 20); break;
        default: byte = static_cast<std::uint8_t>(random());
      }
    }
    return;
  }
  into.resize(1 + random() % 400);
  for (std::uint8_t& byte : into)
    byte = static_cast<std::uint8_t>(random() % 2 == 0 ? random() % 16 : random());
}

}  // namespace

int main(int count, char** arguments) {
  ::alarm(300);
  for (int i = 1; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    input.assign(std::istreambuf_iterator<char>(file), {});
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  if (count > 1) return 0;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM}) ::signal(signal, keep_input);
  const char* text = std::getenv("FARCALL_FUZZ_SECONDS");
  const std::int64_t seconds = text != nullptr ? std::atoi(text) : 5;
  const std::int64_t end = farcall::monotonic_ns() + seconds * 1'000'000'000;
  std::minstd_rand random(1);
  std::uint64_t runs = 0;
  for (; farcall::monotonic_ns() < end || runs <= 10; ++runs) {
    generate(random, input);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(runs));
  return runs > 10 ? 0 : 1;
}
