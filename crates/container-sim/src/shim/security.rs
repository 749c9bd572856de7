//! User, groups and capabilities of a container's program.

use anyhow::{Context as _, Result, bail};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Identity, Security};

/// runc's and containerd's default set.
const DEFAULT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// User that a program runs as.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    gid: u32,
    groups: Vec<u32>,
    pub(super) home: String,
}

impl User {
    /// Finds the user in the container's own `/etc/passwd` and `/etc/group`. To be called inside its root.
    pub(super) fn find(security: &Security) -> Result<Self> {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
        let user = Self::read(security, &passwd, &group)?;
        for (what, id, map) in [("user", user.uid, "/proc/self/uid_map"), ("group", user.gid, "/proc/self/gid_map")] {
            let map = std::fs::read_to_string(map).unwrap_or_default();
            if !map.is_empty() && !is_mapped(id, &map) {
                bail!(
                    "{what} {id} does not exist here: this lab runs in a user namespace that maps one user only, as an ordinary user's does. \
                     Run the container as 0 (runAsUser: 0)"
                );
            }
        }
        Ok(user)
    }

    /// For the container's status.
    pub(super) fn identity(&self) -> Identity {
        Identity { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }

    fn read(security: &Security, passwd: &str, group: &str) -> Result<Self> {
        let (name, group_name) = security.user.split_once(':').map_or((security.user.as_str(), None), |(user, group)| (user, Some(group)));
        let line = |text: &str, column: usize, value: &str| -> Option<Vec<String>> {
            let found = text.lines().find(|line| line.split(':').nth(column) == Some(value))?;
            Some(found.split(':').map(str::to_owned).collect())
        };
        let entry = match name {
            "" => line(passwd, 2, "0"),
            number if number.parse::<u32>().is_ok() => line(passwd, 2, number),
            name => Some(line(passwd, 0, name).with_context(|| format!("unable to find user {name}: no matching entries in passwd file"))?),
        };
        let number = |entry: &Option<Vec<String>>, column: usize| entry.as_ref()?.get(column)?.parse::<u32>().ok();
        let uid = name.parse().ok().or_else(|| number(&entry, 2)).unwrap_or(0);
        let gid = match (security.group, group_name) {
            (Some(gid), _) => gid,
            (None, Some(name)) => match name.parse() {
                Ok(gid) => gid,
                Err(_) => {
                    number(&line(group, 0, name), 2).with_context(|| format!("unable to find group {name}: no matching entries in group file"))?
                }
            },
            (None, None) => number(&entry, 3).unwrap_or(0),
        };
        let mut groups = security.groups.clone();
        if !security.strict_groups {
            // What initgroups does; without a name the user is in no group of the file.
            let name = entry.as_ref().and_then(|entry| entry.first().cloned());
            let lines = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
            let listed = |line: &[&str]| name.as_ref().is_some_and(|name| line.get(3).is_some_and(|users| users.split(',').any(|user| user == name)));
            let found = lines.filter(|line| listed(line)).filter_map(|line| line.get(2)?.parse::<u32>().ok());
            groups.extend(found);
        }
        groups.insert(0, gid);
        let mut seen = std::collections::BTreeSet::new();
        groups.retain(|gid| seen.insert(*gid));
        let home = entry.and_then(|entry| entry.get(5).cloned()).filter(|home| !home.is_empty()).unwrap_or_else(|| "/".to_owned());
        Ok(Self { uid, gid, groups, home })
    }
}

/// Whether a `uid_map` or `gid_map` knows an id.
fn is_mapped(id: u32, map: &str) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers.as_slice(), [first, _, count] if (*first..first + count).contains(&u64::from(id)))
    })
}

/// The capabilities a container keeps.
fn capabilities(security: &Security) -> Result<CapabilitySet> {
    if security.privileged {
        return Ok(CapabilitySet::all());
    }
    let mut kept = DEFAULT;
    if security.drop_capabilities.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
        kept = CapabilitySet::empty();
    }
    if security.add_capabilities.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
        kept = CapabilitySet::all();
    }
    for name in security.add_capabilities.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")) {
        kept |= capability(name)?;
    }
    for name in security.drop_capabilities.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")) {
        kept &= !capability(name)?;
    }
    Ok(kept)
}

fn capability(name: &str) -> Result<CapabilitySet> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CapabilitySet::from_name(short).with_context(|| format!("unknown capability {name:?}"))
}

/// Gives up everything the container shall not have. Irreversible.
pub(super) fn drop_privileges(security: &Security, user: &User) -> Result<()> {
    let kept = capabilities(security)?;
    // With `no_new_privs` the filter may come last; without, it takes CAP_SYS_ADMIN.
    if !security.no_new_privs {
        security.seccomp.apply(kept)?;
    }
    let have = rustix::thread::capabilities(None).context("cannot read capabilities")?;
    drop_from_bounding_set(kept)?;
    let denied = std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny");
    let groups: Vec<nix::unistd::Gid> = user.groups.iter().map(|gid| nix::unistd::Gid::from_raw(*gid)).collect();
    // An ordinary user's namespace may not change the list of groups at all.
    if !denied && have.effective.contains(CapabilitySet::SETGID) && nix::unistd::setgroups(&groups).is_err() && !security.groups.is_empty() {
        bail!("supplemental groups {:?} do not exist in this user namespace", user.groups);
    }
    let (uid, gid) = (nix::unistd::Uid::from_raw(user.uid), nix::unistd::Gid::from_raw(user.gid));
    nix::unistd::setresgid(gid, gid, gid).with_context(|| format!("cannot become group {gid}"))?;
    nix::unistd::setresuid(uid, uid, uid).with_context(|| format!("cannot become user {uid}"))?;
    if user.uid == 0 {
        let kept = kept & have.permitted;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets).context("cannot drop capabilities")?;
    }
    if security.no_new_privs {
        rustix::thread::set_no_new_privs(true).context("cannot set no_new_privs")?;
        security.seccomp.apply(kept)?;
    }
    Ok(())
}

/// Gives up everything for good. A program that the process executes gets nothing either.
pub(super) fn give_up() -> Result<()> {
    drop_from_bounding_set(CapabilitySet::empty())?;
    let none = CapabilitySets { effective: CapabilitySet::empty(), permitted: CapabilitySet::empty(), inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, none).context("cannot drop capabilities")?;
    rustix::thread::set_no_new_privs(true).context("cannot set no_new_privs")?;
    set_dumpable(false)
}

/// Whether others of the same user may read this process's memory and follow its links in `/proc`.
pub(super) fn set_dumpable(is: bool) -> Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    let behaviour = if is { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    set_dumpable_behavior(behaviour).context("cannot set whether this process can be read by others")
}

fn drop_from_bounding_set(kept: CapabilitySet) -> Result<()> {
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // Beyond the last one the kernel knows it answers EINVAL.
        if !kept.contains(one) && rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(one).context("cannot drop a capability")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv:/bin/false\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:\n";

    fn user(text: &str) -> Result<(u32, u32, String)> {
        let security = Security { user: text.to_owned(), ..Security::default() };
        User::read(&security, PASSWD, GROUP).map(|user| (user.uid, user.gid, user.home))
    }

    #[test]
    fn groups_of_the_image_are_added_unless_the_pod_forbids_it() {
        let groups = |user: &str, strict_groups| {
            let security = Security { user: user.to_owned(), groups: vec![7, 50], strict_groups, ..Security::default() };
            User::read(&security, PASSWD, "root:x:0:\nstaff:x:50:a,web\nextra:x:60:web\n").unwrap().groups
        };
        assert_eq!(groups("web", false), [102, 7, 50, 60]);
        assert_eq!(groups("101", false), [102, 7, 50, 60]);
        assert_eq!(groups("web", true), [102, 7, 50]);
        assert_eq!(groups("4711", false), [0, 7, 50]);
    }

    #[test]
    fn users_are_looked_up_in_the_image() {
        assert_eq!(user("").unwrap(), (0, 0, "/root".into()));
        assert_eq!(user("web").unwrap(), (101, 102, "/srv".into()));
        assert_eq!(user("101").unwrap(), (101, 102, "/srv".into()));
        assert_eq!(user("7:staff").unwrap(), (7, 50, "/".into()));
        assert!(user("nobody").is_err() && user("web:nobody").is_err());
    }

    #[test]
    fn id_maps_are_read() {
        assert!(is_mapped(0, "0 1000 1\n") && !is_mapped(1, "0 1000 1\n"));
        assert!(is_mapped(1, "0 1000 1\n1 100000 65536\n") && is_mapped(4_294_967_294, "0 0 4294967295\n"));
    }

    #[test]
    fn capabilities_start_from_runcs_set() {
        let kept = |add: &[&str], drop: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            capabilities(&Security { add_capabilities: names(add), drop_capabilities: names(drop), ..Security::default() })
        };
        assert!(!kept(&[], &[]).unwrap().contains(CapabilitySet::SYS_ADMIN));
        assert_eq!(kept(&["CAP_NET_BIND_SERVICE"], &["ALL"]).unwrap(), CapabilitySet::NET_BIND_SERVICE);
        assert!(!kept(&[], &["net_raw"]).unwrap().contains(CapabilitySet::NET_RAW));
        assert!(kept(&["NO_SUCH"], &[]).is_err());
    }
}
