//! What is to run as a service, and steps that can be printed.

use std::fmt;

/// A part of the program that runs as a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Node agent, service proxy and pod network in one process.
    Node,
    Kubelet,
    KubeProxy,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Node, Self::Kubelet, Self::KubeProxy];

    /// The subcommand that runs it.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// The name of its service: upstream's. Whatever runs the node agent is `kubelet` to kubeadm, and there is one of them on a machine.
    #[must_use]
    pub fn service(self) -> &'static str {
        match self {
            Self::Node | Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// What it is, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Node => "Kubernetes node: node agent, service proxy and pod network",
            Self::Kubelet => "Kubernetes node agent",
            Self::KubeProxy => "Kubernetes service proxy",
        }
    }
}

/// Why a service cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("the path {0:?} of the program is not absolute: give --program with all of it")]
    Relative(String),
    #[error("{0:?} is the name of a part, which it would run whatever the service asks for: give --program with a file named mullion")]
    Named(String),
    #[error("the path {0:?} of the program has a $, which systemd takes for a variable there: move the program")]
    Variable(String),
    #[error("{0:?} has control characters, which no service may have in its command line")]
    Control(String),
}

/// Flags of kube-proxy, each with its value behind a `=`.
const BESIDE_A_FILE: [&str; 4] = ["v", "vmodule", "hostname-override", "log-file"];

/// What is to run as a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    part: Part,
    program: String,
    flags: Vec<String>,
    is_windows: bool,
}

impl Desired {
    /// `program` is the path on the machine where the service runs; `flags` come behind those that a service has anyway.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn new(part: Part, program: &str, flags: Vec<String>, is_windows: bool) -> Result<Self, InputError> {
        let is_absolute = if is_windows { program.as_bytes().get(1) == Some(&b':') || program.starts_with(r"\\") } else { program.starts_with('/') };
        if !is_absolute {
            return Err(InputError::Relative(program.to_owned()));
        }
        let name = program.rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
        if Part::ALL.iter().any(|part| name.trim_end_matches(".exe") == part.service()) {
            return Err(InputError::Named(program.to_owned()));
        }
        if !is_windows && program.contains('$') {
            return Err(InputError::Variable(program.to_owned()));
        }
        if let Some(text) = flags.iter().map(String::as_str).chain([program]).find(|text| text.chars().any(char::is_control)) {
            return Err(InputError::Control(text.to_owned()));
        }
        Ok(Self { part, program: program.to_owned(), flags, is_windows })
    }

    #[must_use]
    pub fn part(&self) -> Part {
        self.part
    }

    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    #[must_use]
    pub fn is_windows(&self) -> bool {
        self.is_windows
    }

    /// Flags behind those that a service has anyway.
    #[must_use]
    pub fn flags(&self) -> &[String] {
        &self.flags
    }

    /// Whether a flag is given here.
    pub(crate) fn gives(&self, name: &str) -> bool {
        let named = |flag: &String| flag.starts_with('-') && flag.trim_start_matches('-').split('=').next() == Some(name);
        self.flags.iter().any(named)
    }

    /// Whether kube-proxy's flags are of the few that count beside a configuration file, so that kubeadm's can stay.
    pub(crate) fn goes_with_a_file(&self) -> bool {
        let name = |flag: &str| flag.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
        self.flags.iter().all(|flag| BESIDE_A_FILE.contains(&&*name(flag)))
    }
}

/// Steps in their order, and remarks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<S> {
    pub steps: Vec<S>,
    pub remarks: Vec<String>,
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self { steps: Vec::new(), remarks: Vec::new() }
    }
}

impl<S: fmt::Display> Plan<S> {
    /// The steps as `--dry-run` prints them.
    #[must_use]
    pub fn text(&self) -> String {
        self.steps.iter().enumerate().map(|(number, step)| format!("{:>2}. {step}\n", number + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_absolute_and_texts_are_lines() {
        let new = |program: &str, flag: &str, is_windows| Desired::new(Part::Kubelet, program, vec![flag.to_owned()], is_windows);
        assert!(new("/usr/bin/mullion", "--v=2", false).is_ok() && new(r"C:\mullion.exe", "--v=2", true).is_ok());
        assert_eq!(new("mullion", "", false), Err(InputError::Relative("mullion".into())));
        assert_eq!(new("/usr/bin/mullion", "", true), Err(InputError::Relative("/usr/bin/mullion".into())));
        for (program, is_windows) in [("/usr/local/bin/kubelet", false), (r"C:\k\Kube-Proxy.exe", true)] {
            assert_eq!(new(program, "", is_windows), Err(InputError::Named(program.into())));
        }
        assert_eq!(new("/opt/$a/mullion", "", false), Err(InputError::Variable("/opt/$a/mullion".into())));
        assert_eq!(new("/m", "--a=b\nExecStartPre=/bin/evil", false), Err(InputError::Control("--a=b\nExecStartPre=/bin/evil".into())));
    }

    #[test]
    fn a_given_flag_is_seen_in_any_form() {
        let desired = |flag: &str| Desired::new(Part::Kubelet, "/m", vec![flag.to_owned()], false).unwrap();
        assert!(desired("--config=/a").gives("config") && desired("-config").gives("config") && !desired("--config-dir=/a").gives("config"));
        assert!(!desired("config").gives("config"), "a value");
        assert!(desired("--v=4").goes_with_a_file() && !desired("--proxy-mode=kernelspace").goes_with_a_file());
    }
}
