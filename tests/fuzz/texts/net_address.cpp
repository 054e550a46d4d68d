// Addresses of remote hosts, in the spelling of records, and lists of
// interfaces.
#include "engine/bootstrap/net_address.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  using namespace dlslime::fuzz;
  Input input(data, size);
  const bool list = input.oneIn(4);
  if (list) {
    const auto wanted = textOf(input.blob());
    const auto name = textOf(input.rest());
    selectsInterface(wanted, name);
    require(selectsInterface("", name), "an empty list selects everything");
    return 0;
  }
  const auto text = textOf(input.rest());
  takes([&] {
    const auto shown = NetAddress::parse(text).text();
    requirePlain(shown);
    require(NetAddress::parse(shown).text() == shown, "it is spelt one way");
  });
  return 0;
}
