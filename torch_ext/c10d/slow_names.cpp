#include "torch_ext/c10d/slow_names.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>

#include <array>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"
#include "torch_ext/store/underlying_store.h"

namespace dlslime {

namespace {

constexpr milliseconds kSlow{1000};

// Returns the first published address of this host, as torch asks for its
// name: an IPv4 address as "::ffff:10.9.0.1". Throws Error.
std::string askedAddress() {
  const auto config = Config::fromEnvironment();
  const auto own =
      Engine::ownAddresses(config.interfaces, config.interfacesSetting).front();
  return own.find(':') == std::string::npos ? "::ffff:" + own : own;
}

void lookUp() {
  const auto text = askedAddress();
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* place = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &place) != 0) {
    return;
  }
  std::array<char, NI_MAXHOST> name{};
  const auto begun = Clock::now();
  getnameinfo(
      place->ai_addr,
      place->ai_addrlen,
      name.data(),
      name.size(),
      nullptr,
      0,
      0);
  const auto taken = Clock::now() - begun;
  freeaddrinfo(place);
  if (taken >= kSlow) {
    logWarning(
        "looking up the name of this host's address " + text + " took " +
        std::to_string(taken / milliseconds(1)) +
        " ms: a name server does not answer, and each connection of torch's "
        "store waits for it. Add the addresses and names of the hosts to "
        "/etc/hosts, or mend /etc/resolv.conf; until then: export "
        "RES_OPTIONS='timeout:1 attempts:1'");
  }
}

} // namespace

void warnOfSlowNames(const c10::intrusive_ptr<c10d::Store>& store) {
  static std::once_flag once;
  if (underlyingTcpStore(store.get()) == nullptr) {
    return;
  }
  std::call_once(once, [] {
    try {
      std::thread([] {
        // The name tells in debuggers, and in tests, that no group waits.
        pthread_setname_np(pthread_self(), "dlslime-names");
        try {
          lookUp();
        } catch (const std::exception& error) { // no usable interface
          logDebug(error.what());
        }
      }).detach();
    } catch (const std::system_error& error) { // no thread can be started
      logDebug(error.what());
    }
  });
}

} // namespace dlslime
