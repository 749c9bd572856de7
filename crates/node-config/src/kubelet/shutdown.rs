//! The periods of a graceful node shutdown (upstream pkg/kubelet/apis/config/validation).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::KubeletConfiguration;
use crate::duration::GoDuration;

/// A period of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownGracePeriodByPodPriority {
    /// Pods from this priority on have the period.
    pub priority: i32,
    /// Seconds.
    pub shutdown_grace_period_seconds: u64,
}

/// Periods that contradict each other. The first words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    /// The part is longer than the whole.
    #[error("invalid configuration: shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {total}")]
    Critical { critical: GoDuration, total: GoDuration },
    /// Less than a second.
    #[error("invalid configuration: {member} {value} must be either zero or otherwise >= 1 sec")]
    Short { member: &'static str, value: GoDuration },
    /// Two ways at once.
    #[error("invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")]
    Both,
}

impl KubeletConfiguration {
    /// Whether the periods of a shutdown agree.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check_shutdown(&self) -> Result<(), ShutdownError> {
        let (total, critical) = (self.shutdown_grace_period, self.shutdown_grace_period_critical_pods);
        if critical > total {
            return Err(ShutdownError::Critical { critical, total });
        }
        for (member, value) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)] {
            if !value.0.is_zero() && value.0 < Duration::from_secs(1) {
                return Err(ShutdownError::Short { member, value });
            }
        }
        if !self.shutdown_grace_period_by_pod_priority.is_empty() && !total.0.is_zero() {
            return Err(ShutdownError::Both);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::document::read_text;

    use super::*;

    #[test]
    fn periods_that_contradict_each_other_are_refused_in_upstreams_words() {
        let check = |text: &str| {
            let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}");
            let read = read_text::<KubeletConfiguration>(&text).unwrap();
            assert_eq!(read.warnings, [""; 0]);
            read.config.check_shutdown().map_err(|error| error.to_string())
        };
        let by_priority = "shutdownGracePeriodByPodPriority: [{priority: -5, shutdownGracePeriodSeconds: 3}]";
        assert_eq!(check(""), Ok(()));
        assert_eq!(check("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s"), Ok(()));
        assert_eq!(check(by_priority), Ok(()));
        let wrong = |text: &str| check(text).unwrap_err();
        assert_eq!(
            wrong("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 1m"),
            "invalid configuration: shutdownGracePeriodCriticalPods 1m0s must be <= shutdownGracePeriod 10s"
        );
        assert_eq!(wrong("shutdownGracePeriod: 900ms"), "invalid configuration: shutdownGracePeriod 900ms must be either zero or otherwise >= 1 sec");
        assert_eq!(
            wrong("shutdownGracePeriod: 9s\nshutdownGracePeriodCriticalPods: 1ms"),
            "invalid configuration: shutdownGracePeriodCriticalPods 1ms must be either zero or otherwise >= 1 sec"
        );
        assert_eq!(
            wrong(&format!("shutdownGracePeriod: 9s\n{by_priority}")),
            "invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
        );
    }
}
