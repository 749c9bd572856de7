//! How often calls were made and failed, and how long they took (upstream pkg/kubelet/kuberuntime/instrumented_services.go).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bounds of the durations, in seconds: upstream's, each 2.5 times the one before.
pub const BOUNDS: [f64; 14] = [
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

/// The calls of one method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Operation {
    pub count: u64,
    pub errors: u64,
    /// All durations together.
    pub seconds: f64,
    /// How many took no longer than each of [`BOUNDS`] and longer than the one before.
    pub within: [u64; BOUNDS.len()],
}

/// The calls of one client and its clones, by method.
#[derive(Debug, Default)]
pub(crate) struct Operations(Mutex<BTreeMap<&'static str, Operation>>);

impl Operations {
    pub(crate) fn add(&self, call: &'static str, took: Duration, failed: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let operation = all.entry(call).or_default();
        let seconds = took.as_secs_f64();
        operation.count += 1;
        operation.errors += u64::from(failed);
        operation.seconds += seconds;
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            operation.within[bucket] += 1;
        }
    }

    pub(crate) fn all(&self) -> Vec<(&'static str, Operation)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(call, operation)| (*call, *operation)).collect()
    }
}

/// Upstream's name of a call in metrics: `RunPodSandbox` is `run_podsandbox`.
pub fn operation_type(call: &str) -> String {
    match call {
        "UpdateContainerResources" => return "update_container".to_owned(),
        "ReopenContainerLog" => return "reopen_container_log".to_owned(),
        _ => {}
    }
    let mut name = String::with_capacity(call.len() + 4);
    for character in call.replace("PodSandbox", "Podsandbox").chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_duration_and_outcome() {
        let operations = Operations::default();
        for (millis, failed) in [(5, false), (6, true), (1_000_000, false)] {
            operations.add("Version", Duration::from_millis(millis), failed);
        }
        let [("Version", version)] = operations.all()[..] else { panic!("{:?}", operations.all()) };
        assert_eq!((version.count, version.errors), (3, 1));
        assert_eq!((version.within[0], version.within[1], version.within.iter().sum::<u64>()), (1, 1, 2), "what took longest is in no bucket");
        assert!((version.seconds - 1000.011).abs() < 1e-9);
        assert!(BOUNDS.windows(2).all(|pair| (pair[1] / pair[0] - 2.5).abs() < 1e-6));
    }

    #[test]
    fn names_are_upstreams() {
        for (call, name) in [
            ("Version", "version"),
            ("RunPodSandbox", "run_podsandbox"),
            ("ListPodSandboxStats", "list_podsandbox_stats"),
            ("UpdateContainerResources", "update_container"),
            ("ReopenContainerLog", "reopen_container_log"),
            ("ImageFsInfo", "image_fs_info"),
            ("ExecSync", "exec_sync"),
        ] {
            assert_eq!(operation_type(call), name);
        }
    }
}
