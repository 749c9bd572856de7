//! The restart count of a container of which only its logs are left (upstream kuberuntime_container.go `calcRestartCountByLogDir`).

use host::{FileKind, PodPath};
use k8s_openapi::api::core::v1::Container;
use thiserror_ext::AsReport as _;

use super::Worker;
use crate::pod::Start;

/// The count of the run after those that left these names in a container's log directory: its logs are called `N.log`, rotated ones `N.log.*`.
fn after(names: &[(String, FileKind)]) -> u32 {
    let run = |(name, kind): &(String, FileKind)| {
        let (digits, rest) = name.split_at(name.find(|c: char| !c.is_ascii_digit())?);
        let is_log = *kind != FileKind::Directory && rest.strip_prefix(".log").is_some_and(|end| end.is_empty() || end.starts_with('.'));
        // The API has the count as an i32: a larger one is no name that an agent gave.
        digits.parse::<i32>().ok().filter(|run| is_log && *run < i32::MAX).map(i32::unsigned_abs)
    };
    names.iter().filter_map(run).max().map_or(0, |run| run + 1)
}

impl Worker {
    /// The restart count of a run. Where neither runtime nor memory nor the pod's status knows of an earlier one, the logs may: those of a
    /// static pod whose containers are gone while the API server is away. A run must not write into the log of another.
    pub(super) fn restarts(&self, c: &Container, start: &Start) -> u32 {
        let is_known = self.state.observed.newest(&c.name).is_some() || self.state.memory.failures.contains_key(&c.name);
        if start.restarts > 0 || is_known {
            return start.restarts;
        }
        let names = self.dirs.logs.join(&c.name).map_err(host::HostError::from).and_then(|dir: PodPath| self.agent.root.read_dir(&dir));
        match names {
            Ok(names) => after(&names),
            Err(error) => {
                let pod = cluster::Key::of(&*self.state.pod);
                tracing::warn!(%pod, container = c.name, error = %error.as_report(), "cannot read the restart count from the container's logs");
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_say_how_often_a_container_ran() {
        let file = |name: &str| (name.to_owned(), FileKind::File);
        for (names, count) in [
            (&[][..], 0),
            (&[file("0.log")][..], 1),
            (&[file("10.log"), file("9.log"), file("2.log.20261129-083000.gz")], 11),
            (&[file("7.log.20261129-083000")], 8),
            // A runtime of Docker's keeps links there.
            (&[("3.log".to_owned(), FileKind::Link)], 4),
            (&[("5.log".to_owned(), FileKind::Directory), file("1.log")], 2),
            (&[file("log"), file(".log"), file("x.log"), file("-1.log"), file("1.logs"), file("1.txt"), file("4")], 0),
            (&[file("2147483646.log")], 2_147_483_647),
            (&[file("2147483647.log"), file("99999999999999999999.log"), file("0.log")], 1),
        ] {
            assert_eq!(after(names), count, "{names:?}");
        }
    }
}
