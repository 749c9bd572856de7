//! Isolation of pods: by namespaces, or (on Windows) by a virtual machine of their own.
//!
//! A pod requests it by runtime handler, as containerd on Windows is configured by convention (`runhcs-wcow-hypervisor`, with a
//! build behind it for one guest only), or by the annotation that dockershim understood (Kubernetes 1.10 to 1.20). Here
//! both run alike: what isolation changes is which images may run, and which build their programs find.

use std::collections::HashMap;

use kube_rules::{NodeOs, WINDOWS_RELEASES, match_build};

use images::platform::Platform;

/// dockershim's annotation on the pod.
const ANNOTATION: &str = "experimental.windows.kubernetes.io/isolation-type";
const LINUX: &str = "runc";
const PROCESS: &str = "runhcs-wcow-process";
const HYPERVISOR: &str = "runhcs-wcow-hypervisor";

/// Isolation of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// The node's kernel: a Windows image has to be of its build.
    Process,
    /// A guest of the image's own build, or of this one.
    Hypervisor { build: Option<u32> },
}

/// The handlers of a node beside the default one.
pub(super) fn handlers(os: NodeOs) -> Vec<String> {
    let Some(host) = os.build() else { return vec![LINUX.to_owned()] };
    let guests = WINDOWS_RELEASES.iter().filter(|release| release.build <= host).map(|release| format!("{HYPERVISOR}-{}", release.build));
    [PROCESS, HYPERVISOR].map(str::to_owned).into_iter().chain(guests).collect()
}

impl Isolation {
    /// What a pod requests; the error lists the handlers of the node.
    pub(super) fn asked(os: NodeOs, handler: &str, annotations: &HashMap<String, String>) -> Result<Self, String> {
        let known = handlers(os);
        if !handler.is_empty() && !known.iter().any(|name| name == handler) {
            return Err(format!("no runtime for {handler:?} is configured: this node has {}", known.join(", ")));
        }
        if let Some(rest) = handler.strip_prefix(HYPERVISOR) {
            return Ok(Self::Hypervisor { build: rest.strip_prefix('-').and_then(|build| build.parse().ok()) });
        }
        let annotated = annotations.get(ANNOTATION).is_some_and(|value| value == "hyperv");
        Ok(if os.is_windows() && handler.is_empty() && annotated { Self::Hypervisor { build: None } } else { Self::Process })
    }

    /// Whether an image runs on a node in this way, and how well it fits among those that do: higher is better.
    pub(super) fn fit(self, os: NodeOs, image: &Platform) -> Option<u32> {
        let (Self::Hypervisor { build }, Some(host)) = (self, os.build()) else { return image.fit(os) };
        let alike = image.os == os.name() && image.architecture == images::platform::host_architecture();
        let of = image.build().unwrap_or(host);
        let runs = match build {
            Some(guest) => match_build(guest, of).is_ok(),
            None => of <= host,
        };
        (alike && runs).then_some(of)
    }

    /// The system that programs of an image find.
    pub(super) fn os(self, node: NodeOs, image: &Platform) -> NodeOs {
        match (self, node.build()) {
            (Self::Hypervisor { build }, Some(host)) => NodeOs::Windows { build: build.or_else(|| image.build()).unwrap_or(host) },
            _ => node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeOs = NodeOs::Windows { build: 20348 };

    fn asked(handler: &str, annotation: &str) -> Result<Isolation, String> {
        Isolation::asked(NODE, handler, &HashMap::from([(ANNOTATION.to_owned(), annotation.to_owned())]))
    }

    #[test]
    fn handler_or_annotation_selects_the_isolation() {
        assert_eq!(asked("", ""), Ok(Isolation::Process));
        assert_eq!(asked("", "hyperv"), Ok(Isolation::Hypervisor { build: None }));
        assert_eq!(asked("", "process"), Ok(Isolation::Process));
        assert_eq!(asked(PROCESS, "hyperv"), Ok(Isolation::Process), "the handler goes before the annotation");
        assert_eq!(asked(HYPERVISOR, ""), Ok(Isolation::Hypervisor { build: None }));
        assert_eq!(asked("runhcs-wcow-hypervisor-17763", ""), Ok(Isolation::Hypervisor { build: Some(17763) }));
        assert_eq!(Isolation::asked(NodeOs::Linux, "", &HashMap::from([(ANNOTATION.to_owned(), "hyperv".to_owned())])), Ok(Isolation::Process));
    }

    #[test]
    fn unknown_handlers_are_refused_with_the_known_ones() {
        for (os, handler) in [(NODE, "runc"), (NODE, "runhcs-wcow-hypervisor-26100"), (NodeOs::Linux, "runsc")] {
            let refused = Isolation::asked(os, handler, &HashMap::new()).unwrap_err();
            assert!(refused.starts_with(&format!("no runtime for {handler:?} is configured")), "{refused}");
            assert!(handlers(os).iter().all(|name| refused.contains(name)), "{refused}");
        }
    }

    #[test]
    fn guests_may_be_older_and_never_newer() {
        let fits = |isolation: Isolation, image| isolation.fit(NODE, &Platform::windows(image)).is_some();
        let any = Isolation::Hypervisor { build: None };
        assert!(fits(any, 14393) && fits(any, 17763) && fits(any, 20348) && !fits(any, 26100));
        let one = Isolation::Hypervisor { build: Some(17763) };
        assert!(fits(one, 17763) && !fits(one, 14393) && !fits(one, 20348));
        assert!(fits(Isolation::Process, 20348) && !fits(Isolation::Process, 17763));
        assert!(any.fit(NODE, &Platform::linux()).is_none());
        assert_eq!(any.os(NODE, &Platform::windows(16299)), NodeOs::Windows { build: 16299 });
        assert_eq!(Isolation::Process.os(NODE, &Platform::windows(20348)), NODE);
    }
}
