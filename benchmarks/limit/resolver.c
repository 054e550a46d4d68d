/* Counts look-ups of names by address, and on request has them as on another machine.
 *
 *   cc -O2 -shared -fPIC benchmarks/limit/resolver.c -o /tmp/resolver.so
 *   LD_PRELOAD=/tmp/resolver.so RESOLVER=silent python ...    no look-up is answered: each takes 5 s
 *   LD_PRELOAD=/tmp/resolver.so RESOLVER=prompt python ...    each is answered at once, by digits
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

atomic_int resolver_lookups;

typedef int (*NameInfo)(const struct sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);

int getnameinfo(const struct sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                char* service, socklen_t service_size, int flags) {
  const NameInfo next = (NameInfo)dlsym(RTLD_NEXT, "getnameinfo");
  const char* resolver = getenv("RESOLVER");
  if (host == NULL || (flags & NI_NUMERICHOST) != 0) { /* digits need no resolver */
    return next(address, size, host, host_size, service, service_size, flags);
  }
  atomic_fetch_add(&resolver_lookups, 1);
  if (resolver != NULL && strcmp(resolver, "silent") == 0) {
    for (unsigned left = 5; left > 0;) {
      left = sleep(left); /* a signal ends it early */
    }
    return EAI_AGAIN;
  }
  if (resolver != NULL && strcmp(resolver, "prompt") == 0) {
    flags |= NI_NUMERICHOST;
  }
  return next(address, size, host, host_size, service, service_size, flags);
}
