// Texts about the library and about completions.
#include "transports/rdma/device/verbs.h"

#include <gtest/gtest.h>

#include <set>

namespace dlslime::rdma {
namespace {

struct Named {
  ibv_wc_status status;
  const char* name;
  const char* hint; // a part of the text
};

// All statuses with which a reliable connection may end, and a word of the
// hint.
constexpr Named kStatuses[] = {
    {IBV_WC_SUCCESS, "IBV_WC_SUCCESS", "no error"},
    {IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR", "longer than its buffer"},
    {IBV_WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR", "queue pair"},
    {IBV_WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR", "local memory"},
    {IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR", "an earlier error"},
    {IBV_WC_MW_BIND_ERR, "IBV_WC_MW_BIND_ERR", "memory windows"},
    {IBV_WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR", "packet"},
    {IBV_WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR", "our memory region"},
    {IBV_WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR", "invalid"},
    {IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", "the peer's memory"},
    {IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", "the peer's NIC"},
    {IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR", "does not answer"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR", "no receive"},
    {IBV_WC_LOC_RDD_VIOL_ERR, "IBV_WC_LOC_RDD_VIOL_ERR", "internal"},
    {IBV_WC_REM_INV_RD_REQ_ERR, "IBV_WC_REM_INV_RD_REQ_ERR", "internal"},
    {IBV_WC_REM_ABORT_ERR, "IBV_WC_REM_ABORT_ERR", "aborted"},
    {IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", "kernel's log"},
    {IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", "in time"},
    {IBV_WC_GENERAL_ERR, "IBV_WC_GENERAL_ERR", "kernel's log"},
};

// Statuses of reliable datagrams and of tag matching, both unused.
constexpr ibv_wc_status kOthers[] = {
    IBV_WC_LOC_EEC_OP_ERR,
    IBV_WC_INV_EECN_ERR,
    IBV_WC_INV_EEC_STATE_ERR,
    IBV_WC_TM_ERR,
    IBV_WC_TM_RNDV_INCOMPLETE};

std::string refusal(const char* library) {
  try {
    verbsOf(library);
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kUnavailable);
    return error.what();
  }
  return "it can be used";
}

TEST(RdmaLibrary, ThatIsMissingIsNamedWithWhatToInstall) {
  const auto text = refusal("libibverbs.so.99");
  EXPECT_NE(text.find("libibverbs.so.99"), std::string::npos) << text;
  EXPECT_NE(text.find("install rdma-core"), std::string::npos) << text;
}

TEST(RdmaLibrary, ThatIsTooOldIsNamedWithTheFirstCallThatItLacks) {
  const auto text = refusal("libm.so.6"); // a library without verbs
  EXPECT_NE(text.find("libm.so.6"), std::string::npos) << text;
  EXPECT_NE(text.find("ibv_get_device_list"), std::string::npos) << text;
  EXPECT_NE(text.find("install a newer rdma-core"), std::string::npos) << text;
}

// libibverbs may hide registered memory from forked children only on such
// kernels.
TEST(RdmaForks, OnlyOnKernelsThatDoNotCopyRegisteredMemory) {
  static int hidden;
  hidden = 0;
  Verbs verbs{};
  verbs.forkInit = [] {
    ++hidden;
    return 0;
  };
  prepareForForks(verbs);
  EXPECT_EQ(hidden, 1) << "a library that can't say it";
  verbs.forkStatus = []() -> int { return 0; }; // IBV_FORK_DISABLED
  prepareForForks(verbs);
  EXPECT_EQ(hidden, 2);
  verbs.forkStatus = []() -> int { return IBV_FORK_UNNEEDED; };
  prepareForForks(verbs);
  EXPECT_EQ(hidden, 2);
}

TEST(RdmaCompletions, EveryStatusHasItsNameAndAHint) {
  std::set<int> seen;
  for (const auto& [status, name, hint] : kStatuses) {
    const auto text = describeCompletion(status, 0);
    EXPECT_EQ(text.find(std::string(name) + " ("), 0U) << text;
    EXPECT_NE(text.find(hint), std::string::npos) << text;
    EXPECT_EQ(text.find("vendor"), std::string::npos) << text;
    seen.insert(status);
  }
  for (const auto status : kOthers) {
    const auto text = describeCompletion(status, 0);
    EXPECT_NE(text.find(std::to_string(status)), std::string::npos) << text;
    seen.insert(status);
  }
  EXPECT_EQ(seen.size(), size_t{IBV_WC_TM_RNDV_INCOMPLETE} + 1)
      << "all of them";
}

TEST(RdmaCompletions, VendorsErrorIsAddedWhereThereIsOne) {
  EXPECT_NE(
      describeCompletion(IBV_WC_RETRY_EXC_ERR, 129).find("; vendor error 129)"),
      std::string::npos);
}

} // namespace
} // namespace dlslime::rdma
