//! Limits that stage 3 applies to itself before the program starts.
//!
//! A Windows job answers too large an allocation with failure: here every process has its bound on private memory
//! (`RLIMIT_DATA`), the nearest that Linux has for users without rights; for the sum of a container's programs the shim moves
//! these bounds (`serve::memory`). What a cgroup bounds ends with the kernel
//! killing a process, which is how Linux containers are limited, and what the shim looks for when they end.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// What binds the processes of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Bytes of private memory at which allocations of a process fail.
    #[serde(default)]
    pub data: Option<u64>,
    /// Directories of the cgroups to be in.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

impl Limits {
    /// Moves this process into the cgroups. To be called while they are in sight.
    pub(super) fn join(&self) -> Result<()> {
        for dir in &self.cgroups {
            std::fs::write(dir.join("cgroup.procs"), "0").with_context(|| format!("cannot join cgroup {}", dir.display()))?;
        }
        Ok(())
    }

    /// Bounds this process's memory, for itself and its children.
    pub(super) fn bound(&self) -> Result<()> {
        if self.data.is_none() {
            return Ok(());
        }
        setrlimit(Resource::Data, self.data_bound()).context("cannot limit memory")
    }

    /// The bound on private memory. The hard one stays open: no process in a user namespace could raise it again for an update.
    pub(crate) fn data_bound(&self) -> Rlimit {
        Rlimit { current: self.data, maximum: getrlimit(Resource::Data).maximum }
    }

    /// Whether the kernel has killed one of its processes because memory ran out.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        // cgroup v2 and v1.
        let counts = self.cgroups.iter().flat_map(|dir| ["memory.events", "memory.oom_control"].map(|file| dir.join(file)));
        counts.filter_map(|file| std::fs::read_to_string(file).ok()).any(|text| kills(&text) > 0)
    }
}

fn kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_in_both_versions_of_cgroups() {
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(kills("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(kills("oom_kill_disable 1\n"), 0);
    }
}
