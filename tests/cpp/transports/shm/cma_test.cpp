// Permission to copy from and to a peer's memory: what the kernel says about a
// refusal, and what the log says.
#include "transports/shm/cma.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "fakes/made_up_folder.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::MadeUpFolder;

TEST(AccessProblem, IsWhatTheKernelSays) {
  EXPECT_EQ(accessProblem(static_cast<uint32_t>(getpid())), 0);
  EXPECT_EQ(accessProblem(0), ESRCH);
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(accessProblem(static_cast<uint32_t>(child)), ESRCH);
}

// The files of /proc that tell of a process's permissions.
class AccessRulesOfProc : public ::testing::Test {
 protected:
  void status(const std::string& capabilities, int seccomp) {
    proc.put(
        "self/status",
        "Name:\tSeccomp: 2 CapEff:\nCapPrm:\tffffffffffffffff\nCapEff:\t" +
            capabilities + "\nNoNewPrivs:\t0\nSeccomp:\t" +
            std::to_string(seccomp) + "\nSeccomp_filters:\t2");
  }
  AccessRules rules() const {
    return accessRules(proc.root());
  }

  MadeUpFolder proc;
};

TEST_F(AccessRulesOfProc, ScopeOfYamaIsRead) {
  EXPECT_EQ(rules().yamaScope, 0) << "a kernel without Yama";
  proc.put("sys/kernel/yama/ptrace_scope", "1");
  EXPECT_EQ(rules().yamaScope, 1);
  proc.put("sys/kernel/yama/ptrace_scope", "3");
  EXPECT_EQ(rules().yamaScope, 3);
}

TEST_F(AccessRulesOfProc, FilterOfSystemCallsIsTheModeTwo) {
  status("0000000000000000", 0);
  EXPECT_FALSE(rules().seccomp);
  status("0000000000000000", 1);
  EXPECT_FALSE(rules().seccomp) << "the strict mode, without a filter";
  status("0000000000000000", 2);
  EXPECT_TRUE(rules().seccomp);
}

TEST_F(AccessRulesOfProc, OneCapabilityIsAPrivilege) {
  status("0000000000080000", 2);
  EXPECT_TRUE(rules().privileged);
  EXPECT_TRUE(rules().seccomp) << "the lines behind are read as well";
  status("fffffffffff7ffff", 0);
  EXPECT_FALSE(rules().privileged);
}

TEST_F(AccessRulesOfProc, NamespaceOfPidsIsTheHostsByItsNumber) {
  EXPECT_FALSE(rules().initialPids) << "nothing is known";
  proc.put("self/ns/pid", "");
  EXPECT_FALSE(rules().initialPids) << "another number";
  const bool onTheHost =
      std::filesystem::read_symlink("/proc/self/ns/pid") == "pid:[4026531836]";
  EXPECT_EQ(accessRules("/proc").initialPids, onTheHost);
}

struct Refusal {
  const char* name;
  uint32_t pid;
  int error;
  AccessRules rules;
  std::string cause, remedy; // all of the text that depends on the case
};
class RefusedAccess : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedAccess, HasCauseAndRemedy) {
  const auto& [name, pid, error, rules, cause, remedy] = GetParam();
  const std::string peer =
      pid == 0 ? "a process of this host" : "process " + std::to_string(pid);
  EXPECT_EQ(
      refusedAccessText(pid, error, rules),
      "large messages to and from " + peer +
          " take two copies, through shared memory, instead of one, because "
          "process_vm_readv of the process is refused: " +
          cause + ". To get the faster way, " + remedy +
          "; DLSLIME_CMA=off silences the warning");
}

const std::string kEperm = "errno 1 (Operation not permitted)";
const std::string kScope = "; kernel.yama.ptrace_scope is ";
const std::string kFilter = "; a seccomp filter is active";
const std::string kSetScope = "set sysctl kernel.yama.ptrace_scope=0";
const std::string kProfile =
    "use a seccomp profile that allows process_vm_readv and "
    "process_vm_writev (docker run --security-opt)";
const std::string kCapability =
    "give the processes CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)";

AccessRules rulesOf(int yamaScope, bool seccomp, bool privileged = false) {
  AccessRules rules;
  rules.yamaScope = yamaScope;
  rules.seccomp = seccomp;
  rules.privileged = privileged;
  return rules;
}

INSTANTIATE_TEST_SUITE_P(
    Causes,
    RefusedAccess,
    ::testing::Values(
        Refusal{
            "OtherPidNamespace",
            0,
            ESRCH,
            rulesOf(1, true),
            "the process is in another pid namespace",
            "start both containers with one pid namespace (docker run --pid, "
            "in a pod shareProcessNamespace)"},
        Refusal{
            "KernelWithoutTheCall",
            7,
            ENOSYS,
            rulesOf(0, false),
            "errno 38 (Function not implemented)",
            "use a kernel with CONFIG_CROSS_MEMORY_ATTACH"},
        Refusal{
            "Yama",
            7,
            EPERM,
            rulesOf(2, false),
            kEperm + kScope + "2",
            kSetScope},
        Refusal{
            "YamaIsNoCauseForThePrivileged",
            7,
            EPERM,
            rulesOf(1, true, true),
            kEperm + kFilter,
            kProfile},
        Refusal{
            "YamaThatForbidsAllIsOneAlsoForThem",
            7,
            EPERM,
            rulesOf(3, false, true),
            kEperm + kScope + "3",
            "set kernel.yama.ptrace_scope=0 in /etc/sysctl.conf and restart "
            "the host"},
        Refusal{
            "Filter",
            7,
            EPERM,
            rulesOf(0, true),
            kEperm + kFilter,
            kProfile},
        Refusal{
            "YamaAndFilter",
            7,
            EPERM,
            rulesOf(1, true),
            kEperm + kScope + "1" + kFilter,
            kSetScope + " and " + kProfile},
        Refusal{"Nothing", 7, EPERM, rulesOf(0, false), kEperm, kCapability}),
    [](const auto& test) { return test.param.name; });

TEST(ProcessToPermit, IsTheParentUnderTheScopeOfDescendants) {
  EXPECT_EQ(processToPermit(500, rulesOf(1, false)), 500);
  for (const int scope : {0, 2, 3}) {
    EXPECT_EQ(processToPermit(500, rulesOf(scope, false)), 0) << scope;
  }
}

TEST(ProcessToPermit, IsNoAncestorOfTheWholeHost) {
  auto rules = rulesOf(1, false);
  rules.initialPids = true;
  EXPECT_EQ(processToPermit(1, rules), 0);
  rules.initialPids = false;
  EXPECT_EQ(processToPermit(1, rules), 1) << "the init of a container";
  EXPECT_EQ(processToPermit(0, rules), 0) << "a parent in no namespace of ours";
}

} // namespace
} // namespace dlslime::shm
