//! Names of control groups, as upstream's kubelet gives them (cm/cgroup_manager_linux.go): a node may change its agent while pods run.

use std::fmt;

use crate::config::Cgroups;

/// What systemd's units for groups of groups end with.
const SLICE: &str = ".slice";
const POD: &str = "pod";

/// Where a group is, from the root of the control groups on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(Vec<String>);

impl Name {
    /// Of a path as configurations have it: `/` or `/a/b`.
    pub(crate) fn parse(path: &str) -> Self {
        Name(path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }

    /// A group as its driver writes it: of systemd the last unit says everything.
    pub(crate) fn parse_as(driver: Cgroups, path: &str) -> Self {
        match driver {
            Cgroups::Files => Self::parse(path),
            Cgroups::Systemd => {
                let unit = path.rsplit('/').next().unwrap_or_default();
                let unit = unit.strip_suffix(SLICE).unwrap_or(unit);
                Name(unit.split('-').filter(|part| !part.is_empty()).map(|part| part.replace('_', "-")).collect())
            }
        }
    }

    pub(crate) fn child(&self, part: &str) -> Self {
        Name(self.0.iter().cloned().chain([part.to_owned()]).collect())
    }

    /// The groups of classes below this one of all pods, itself among them: Guaranteed pods are right below it.
    pub(crate) fn classes(&self) -> [Self; 3] {
        ["Guaranteed", "Burstable", "BestEffort"].map(|qos| super::class(self, qos))
    }

    /// The group of a pod below that of its class. None for UIDs whose group could not be told from another one's: systemd's names have
    /// underscores in the place of hyphens.
    pub(crate) fn pod(&self, uid: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (!uid.is_empty() && uid.chars().all(is_plain) && !uid.contains(POD)).then(|| self.child(&format!("{POD}{uid}")))
    }

    /// The groups from below the root down to this one, the outermost first.
    pub(crate) fn with_parents(&self) -> impl Iterator<Item = Name> + '_ {
        (1..=self.0.len()).map(|depth| Name(self.0[..depth].to_vec()))
    }

    pub(crate) fn parent(&self) -> Option<Name> {
        self.0.split_last().map(|(_, above)| Name(above.to_vec()))
    }

    /// The unit that systemd has for it.
    pub(crate) fn unit(&self) -> String {
        if self.0.is_empty() {
            return format!("-{SLICE}");
        }
        let parts: Vec<String> = self.0.iter().map(|part| part.replace('-', "_")).collect();
        format!("{}{SLICE}", parts.join("-"))
    }

    /// Its directory below the mount of a hierarchy, as runtimes are told of it: `/kubepods/burstable/podUID`, or of systemd slices below
    /// slices, in whose names hyphens separate the levels.
    pub(crate) fn path(&self, driver: Cgroups) -> String {
        match driver {
            Cgroups::Files => format!("/{}", self.0.join("/")),
            Cgroups::Systemd if self.0.is_empty() => "/".to_owned(),
            Cgroups::Systemd => self.with_parents().map(|name| format!("/{}", name.unit())).collect(),
        }
    }

    /// The UID of the pod whose group an entry of this group's directory is.
    pub(crate) fn pod_of(&self, driver: Cgroups, entry: &str) -> Option<String> {
        let rest = match driver {
            Cgroups::Files => entry.to_owned(),
            Cgroups::Systemd => {
                let unit = self.unit();
                let own = unit.strip_suffix(SLICE)?;
                entry.strip_suffix(SLICE)?.strip_prefix(own)?.strip_prefix('-')?.replace('_', "-")
            }
        };
        let uid = rest.strip_prefix(POD)?;
        self.pod(uid).map(|_| uid.to_owned())
    }
}

/// As upstream's messages show it.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.0.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of upstream's TestCgroupNameToSystemdConversion and its reverse.
    #[test]
    fn names_are_those_of_upstream_and_can_be_read_back() {
        for (parts, files, systemd) in [
            ("/", "/", "/"),
            ("/Burstable", "/Burstable", "/Burstable.slice"),
            ("/Burstable/pod-123", "/Burstable/pod-123", "/Burstable.slice/Burstable-pod_123.slice"),
            (
                "/kubepods/burstable/pod1234-abcd-5678-efgh",
                "/kubepods/burstable/pod1234-abcd-5678-efgh",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice",
            ),
            ("/system-a/kubepods", "/system-a/kubepods", "/system_a.slice/system_a-kubepods.slice"),
        ] {
            let name = Name::parse(parts);
            assert_eq!((name.path(Cgroups::Files).as_str(), name.path(Cgroups::Systemd).as_str()), (files, systemd));
            assert_eq!(Name::parse_as(Cgroups::Files, files), name);
            if parts != "/" {
                assert_eq!(Name::parse_as(Cgroups::Systemd, systemd), name);
            }
        }
        assert_eq!(Name::parse("/a/b").to_string(), "[a b]");
        assert_eq!((Name::parse("/").unit().as_str(), Name::parse("/a-b/c").unit().as_str()), ("-.slice", "a_b-c.slice"));
    }

    #[test]
    fn only_groups_of_pods_are_taken_for_such() {
        let class = Name::parse("/kubepods/burstable");
        for (driver, entry, uid) in [
            (Cgroups::Files, "pod1-2", Some("1-2")),
            (Cgroups::Files, "pod", None),
            (Cgroups::Files, "podpod1", None),
            (Cgroups::Files, "pod1_2", None),
            (Cgroups::Files, "other", None),
            (Cgroups::Systemd, "kubepods-burstable-pod1_2.slice", Some("1-2")),
            (Cgroups::Systemd, "kubepods-besteffort-pod1_2.slice", None),
            (Cgroups::Systemd, "kubepods-burstable-pod1_2.scope", None),
            (Cgroups::Systemd, "kubepods-burstable-pod.slice", None),
            (Cgroups::Systemd, "pod1_2.slice", None),
        ] {
            assert_eq!(class.pod_of(driver, entry).as_deref(), uid, "{driver:?} {entry}");
        }
        for uid in ["", "a_b", "a/b", "..", "podx"] {
            assert_eq!(class.pod(uid), None, "{uid:?}");
        }
    }
}
