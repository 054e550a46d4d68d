#include <gtest/gtest.h>

#include "fakes/child_process.h"

int main(int count, char** arguments) {
  const int status = dlslime::testing::runAsChild(count, arguments);
  if (status >= 0) {
    return status;
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
