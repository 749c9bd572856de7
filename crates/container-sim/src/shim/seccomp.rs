//! Seccomp filters: OCI profiles, compiled to programs of the kernel.
//!
//! The runtime's default profile refuses what Docker's documentation lists as significant, unless a capability that the
//! container has brings it along; containerd's allows a long list and refuses the rest, newer calls among it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use linux_sys::seccomp::{Instruction, install};
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
use serde::{Deserialize, Serialize};

/// The filter that a container requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Seccomp {
    #[default]
    Unconfined,
    /// The runtime's own profile.
    Default,
    Profile(Profile),
}

/// `linux.seccomp` of the OCI runtime specification, as far as filters go. What is unknown is left out there too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Profile {
    default_action: Action,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Calls>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Calls {
    names: Vec<String>,
    action: Action,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Vec<Arg>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arg {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: Op,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_KILL", alias = "SCMP_ACT_KILL_THREAD")]
    KillThread,
    #[serde(rename = "SCMP_ACT_KILL_PROCESS")]
    KillProcess,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(rename = "SCMP_ACT_TRAP")]
    Trap,
    #[serde(rename = "SCMP_ACT_TRACE")]
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Op {
    #[serde(rename = "SCMP_CMP_EQ")]
    Eq,
    #[serde(rename = "SCMP_CMP_NE")]
    Ne,
    #[serde(rename = "SCMP_CMP_LT")]
    Lt,
    #[serde(rename = "SCMP_CMP_LE")]
    Le,
    #[serde(rename = "SCMP_CMP_GT")]
    Gt,
    #[serde(rename = "SCMP_CMP_GE")]
    Ge,
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEq,
}

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Refused without exception.
const REFUSED: &[&str] = &[
    "add_key",
    "create_module",
    "get_kernel_syms",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "nfsservctl",
    "query_module",
    "request_key",
    "swapoff",
    "swapon",
    "sysfs",
    "uselib",
    "userfaultfd",
    "ustat",
    "_sysctl",
];

/// Refused without a capability.
const GUARDED: &[(CapabilitySet, &[&str])] = &[
    (
        CapabilitySet::SYS_ADMIN,
        &[
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "pivot_root",
            "quotactl",
            "quotactl_fd",
            "setns",
            "umount2",
            "unshare",
        ],
    ),
    (CapabilitySet::BPF, &["bpf"]),
    (CapabilitySet::PERFMON, &["perf_event_open"]),
    (CapabilitySet::DAC_READ_SEARCH, &["open_by_handle_at"]),
    (CapabilitySet::SYS_BOOT, &["reboot"]),
    (CapabilitySet::SYS_MODULE, &["delete_module", "finit_module", "init_module"]),
    (CapabilitySet::SYS_NICE, &["get_mempolicy", "mbind", "move_pages", "set_mempolicy"]),
    (CapabilitySet::SYS_PACCT, &["acct"]),
    (CapabilitySet::SYS_PTRACE, &["kcmp", "pidfd_getfd"]),
    (CapabilitySet::SYS_RAWIO, &["ioperm", "iopl"]),
    (CapabilitySet::SYS_TIME, &["clock_adjtime", "clock_settime", "settimeofday"]),
    (CapabilitySet::SYS_TTY_CONFIG, &["vhangup"]),
    (CapabilitySet::SYSLOG, &["syslog"]),
];

/// New namespaces by `clone`.
const NAMESPACES: u64 = 0x7e02_0000;

impl Profile {
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).context("not a seccomp profile of OCI's form")
    }

    /// The runtime's own, for a container with these capabilities.
    fn standard(kept: CapabilitySet) -> Self {
        let calls = |names: &[&str], errno_ret, args| Calls {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            action: Action::Errno,
            errno_ret,
            args,
        };
        let mut syscalls = vec![calls(REFUSED, None, Vec::new())];
        let held = |capability: CapabilitySet| kept.contains(capability) || kept.contains(CapabilitySet::SYS_ADMIN);
        syscalls.extend(GUARDED.iter().filter(|(capability, _)| !held(*capability)).map(|(_, names)| calls(names, None, Vec::new())));
        if !kept.contains(CapabilitySet::SYS_ADMIN) {
            // clone3 hides its flags from filters: programs fall back to clone, where each kind is seen.
            syscalls.push(calls(&["clone3"], Some(ENOSYS), Vec::new()));
            let bits = (0..64).map(|bit| 1u64 << bit).filter(|bit| NAMESPACES & bit != 0);
            syscalls.extend(bits.map(|bit| calls(&["clone"], None, vec![Arg { index: 0, value: bit, value_two: bit, op: Op::MaskedEq }])));
        }
        Self { default_action: Action::Allow, default_errno_ret: None, syscalls }
    }

    /// One program for each answer: the kernel takes the strictest of all.
    fn programs(&self) -> Result<Vec<BpfProgram>> {
        let default = action(self.default_action, self.default_errno_ret);
        let lenient = matches!(default, SeccompAction::Allow | SeccompAction::Log);
        let mut answers: Vec<SeccompAction> = Vec::new();
        for calls in &self.syscalls {
            let answer = action(calls.action, calls.errno_ret);
            let permits = matches!(answer, SeccompAction::Allow | SeccompAction::Log);
            if answer != default && !answers.contains(&answer) && (lenient != permits || !permits) {
                answers.push(answer);
            }
        }
        let mut programs = Vec::new();
        if !lenient {
            // Everything that is mentioned passes here, and meets its own answer below.
            let rules = rules(self.syscalls.iter().filter(|calls| action(calls.action, calls.errno_ret) != default))?;
            programs.push(compile(rules, default.clone(), SeccompAction::Allow)?);
        }
        for answer in answers.into_iter().filter(|answer| !matches!(answer, SeccompAction::Allow)) {
            let rules = rules(self.syscalls.iter().filter(|calls| action(calls.action, calls.errno_ret) == answer))?;
            programs.push(compile(rules, if lenient { default.clone() } else { SeccompAction::Allow }, answer)?);
        }
        Ok(programs)
    }
}

fn action(action: Action, errno: Option<u32>) -> SeccompAction {
    match action {
        Action::Allow => SeccompAction::Allow,
        Action::Errno => SeccompAction::Errno(errno.unwrap_or(EPERM)),
        Action::KillThread => SeccompAction::KillThread,
        Action::KillProcess => SeccompAction::KillProcess,
        Action::Log => SeccompAction::Log,
        Action::Trap => SeccompAction::Trap,
        Action::Trace => SeccompAction::Trace(errno.unwrap_or(EPERM)),
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules<'a>(calls: impl Iterator<Item = &'a Calls>) -> Result<Rules> {
    let mut rules = Rules::new();
    let mut always = Vec::new();
    for calls in calls {
        let conditions = calls.args.iter().map(condition).collect::<Result<Vec<_>>>()?;
        // Names that this processor's kernel does not have are passed over, as by libseccomp.
        let numbers = calls.names.iter().filter_map(|name| name.parse::<syscalls::Sysno>().ok()).map(|call| i64::from(call.id()));
        for number in numbers {
            let known = rules.entry(number).or_default();
            if conditions.is_empty() {
                always.push(number);
            } else {
                known.push(SeccompRule::new(conditions.clone())?);
            }
        }
    }
    // An empty list matches whatever the arguments.
    always.iter().for_each(|number| drop(rules.insert(*number, Vec::new())));
    Ok(rules)
}

fn condition(arg: &Arg) -> Result<SeccompCondition> {
    let (op, value) = match arg.op {
        Op::Eq => (SeccompCmpOp::Eq, arg.value),
        Op::Ne => (SeccompCmpOp::Ne, arg.value),
        Op::Lt => (SeccompCmpOp::Lt, arg.value),
        Op::Le => (SeccompCmpOp::Le, arg.value),
        Op::Gt => (SeccompCmpOp::Gt, arg.value),
        Op::Ge => (SeccompCmpOp::Ge, arg.value),
        Op::MaskedEq => (SeccompCmpOp::MaskedEq(arg.value), arg.value_two),
    };
    Ok(SeccompCondition::new(arg.index, SeccompCmpArgLen::Qword, op, value)?)
}

fn compile(rules: Rules, mismatch: SeccompAction, matched: SeccompAction) -> Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().context("seccomp filters are not known for this processor")?;
    Ok(SeccompFilter::new(rules, mismatch, matched, arch)?.try_into()?)
}

impl Seccomp {
    /// Binds this process, which keeps these capabilities. Irreversible.
    pub(super) fn apply(&self, kept: CapabilitySet) -> Result<()> {
        let profile = match self {
            Self::Unconfined => return Ok(()),
            Self::Default => &Profile::standard(kept),
            Self::Profile(profile) => profile,
        };
        for program in profile.programs().context("the seccomp profile cannot be used")? {
            let program: Vec<Instruction> = program.iter().map(|line| Instruction { code: line.code, jt: line.jt, jf: line.jf, k: line.k }).collect();
            if let Err(error) = install(&program) {
                bail!("cannot install the seccomp filter: {error}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(json: &str) -> Profile {
        Profile::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn one_filter_program_exists_per_verdict() {
        let deny = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod","no_such_call"],"action":"SCMP_ACT_ERRNO"},
            {"names":["ptrace"],"action":"SCMP_ACT_KILL"},{"names":["fchmod"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}"#;
        assert_eq!(profile(deny).programs().unwrap().len(), 2);
        let allow = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"architectures":["SCMP_ARCH_X86_64"],
            "syscalls":[{"names":["read","write"],"action":"SCMP_ACT_ALLOW"}]}"#;
        assert_eq!(profile(allow).programs().unwrap().len(), 1);
        let mixed = r#"{"defaultAction":"SCMP_ACT_KILL_PROCESS","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"},{"names":["open"],"action":"SCMP_ACT_ERRNO"}]}"#;
        assert_eq!(profile(mixed).programs().unwrap().len(), 2);
        assert!(Profile::parse(br#"{"defaultAction":"SCMP_ACT_DANCE"}"#).is_err());
        assert!(profile(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).programs().unwrap().is_empty());
    }

    #[test]
    fn a_rule_without_arguments_wins_over_those_with() {
        let both = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
            {"names":["personality"],"action":"SCMP_ACT_ERRNO","args":[{"index":0,"value":8,"op":"SCMP_CMP_EQ"}]},
            {"names":["personality"],"action":"SCMP_ACT_ERRNO"}]}"#;
        let rules = rules(profile(both).syscalls.iter()).unwrap();
        assert!(rules.len() == 1 && rules.values().all(Vec::is_empty));
    }

    #[test]
    fn capabilities_bring_their_calls_along() {
        let names = |kept| Profile::standard(kept).syscalls.into_iter().flat_map(|calls| calls.names).collect::<Vec<_>>();
        let without = names(CapabilitySet::empty());
        assert!(["mount", "bpf", "clone3", "clone", "reboot"].iter().all(|name| without.iter().any(|known| known == name)));
        let with = names(CapabilitySet::SYS_ADMIN);
        assert!(!with.iter().any(|name| name == "mount" || name == "clone") && with.iter().any(|name| name == "keyctl"));
        assert!(!names(CapabilitySet::SYS_TIME).iter().any(|name| name == "clock_settime"));
        // Every name is a call of this kernel or was one of another processor's.
        assert!(without.iter().filter(|name| name.parse::<syscalls::Sysno>().is_ok()).count() > without.len() - 8);
        assert!(!Profile::standard(CapabilitySet::empty()).programs().unwrap().is_empty());
    }
}
