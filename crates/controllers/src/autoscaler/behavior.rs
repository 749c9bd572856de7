//! How fast a workload may follow what metrics call for: stabilization windows, scaling policies, bounds
//! (upstream: `podautoscaler/horizontal.go`, `normalizeDesiredReplicas…`). Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// For how long a higher recommendation counts (`--horizontal-pod-autoscaler-downscale-stabilization`).
const DOWNSCALE_WINDOW: i32 = 300;
/// Without policies a workload may at most double, but for small ones.
const UP_FACTOR: f64 = 2.0;
const UP_LEAST: f64 = 4.0;

/// What was recommended and done before; it ends with the process, as upstream's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct History {
    recommendations: Vec<(i32, Timestamp)>,
    /// Replicas added or taken away, and when.
    ups: Vec<(i32, Timestamp)>,
    downs: Vec<(i32, Timestamp)>,
}

/// The rules of one direction, with upstream's defaults.
#[derive(Debug, Clone, PartialEq)]
struct Rules {
    window: i32,
    select: Select,
    policies: Vec<HPAScalingPolicy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Select {
    Max,
    Min,
    Disabled,
}

fn policy(type_: &str, value: i32, period_seconds: i32) -> HPAScalingPolicy {
    HPAScalingPolicy { type_: type_.to_owned(), value, period_seconds }
}

impl Rules {
    fn new(given: Option<&HPAScalingRules>, window: i32, policies: &[HPAScalingPolicy]) -> Self {
        let select = match given.and_then(|rules| rules.select_policy.as_deref()) {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Min,
            _ => Select::Max,
        };
        Self {
            window: given.and_then(|rules| rules.stabilization_window_seconds).unwrap_or(window),
            select,
            policies: given.and_then(|rules| rules.policies.clone()).filter(|policies| !policies.is_empty()).unwrap_or_else(|| policies.to_vec()),
        }
    }

    fn up(behavior: &HorizontalPodAutoscalerBehavior) -> Self {
        Self::new(behavior.scale_up.as_ref(), 0, &[policy("Pods", 4, 15), policy("Percent", 100, 15)])
    }

    fn down(behavior: &HorizontalPodAutoscalerBehavior) -> Self {
        Self::new(behavior.scale_down.as_ref(), DOWNSCALE_WINDOW, &[policy("Percent", 100, 15)])
    }

    fn longest_period(&self) -> i32 {
        self.policies.iter().map(|policy| policy.period_seconds).max().unwrap_or_default()
    }
}

/// A condition's reason and message.
pub(super) type Why = (&'static str, &'static str);

/// What becomes of a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Normalized {
    pub replicas: i32,
    /// Of the condition AbleToScale.
    pub able: Why,
    /// Of the condition ScalingLimited, and whether it is true.
    pub limited: (bool, Why),
}

/// Bounds and state of the workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub current: i32,
    pub min: i32,
    pub max: i32,
}

const READY: Why = ("ReadyForNewScale", "recommended size matches current size");
const HIGHER: Why = ("ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation");
const LOWER: Why = ("ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation");
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FAST: Why = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Why = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: Why = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Why = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");

fn before(now: Timestamp, seconds: i32) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MIN)
}

impl History {
    /// Notes the size that a workload has when it is first looked at.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((current, now));
        }
    }

    /// Notes a change of size, for the policies that limit the next ones.
    pub fn scaled(&mut self, behavior: Option<&HorizontalPodAutoscalerBehavior>, from: i32, to: i32, now: Timestamp) {
        let Some(behavior) = behavior else { return };
        let (events, rules) = if to > from { (&mut self.ups, Rules::up(behavior)) } else { (&mut self.downs, Rules::down(behavior)) };
        let cutoff = before(now, rules.longest_period());
        events.retain(|(_, at)| *at >= cutoff);
        events.push(((to - from).abs(), now));
    }

    /// Keeps a recommendation, and forgets those of before `cutoff`.
    fn recommend(&mut self, replicas: i32, now: Timestamp, cutoff: Timestamp) {
        self.recommendations.retain(|(_, at)| *at >= cutoff);
        self.recommendations.push((replicas, now));
    }

    /// The size that a workload gets when metrics call for `desired` replicas.
    pub fn normalize(&mut self, behavior: Option<&HorizontalPodAutoscalerBehavior>, bounds: Bounds, desired: i32, now: Timestamp) -> Normalized {
        let (stable, stabilized, (replicas, why)) = match behavior {
            None => {
                let stable = self.stabilize(desired, now);
                (stable, HIGHER, limit(bounds, stable))
            }
            Some(behavior) => {
                let (up, down) = (Rules::up(behavior), Rules::down(behavior));
                let stable = self.stabilize_by_rules(bounds.current, desired, (&up, &down), now);
                let stabilized = if desired >= bounds.current { LOWER } else { HIGHER };
                (stable, stabilized, self.limit_by_rules(bounds, stable, (&up, &down), now))
            }
        };
        Normalized { replicas, able: if stable == desired { READY } else { stabilized }, limited: (replicas != stable, why) }
    }

    fn stabilize(&mut self, desired: i32, now: Timestamp) -> i32 {
        let cutoff = before(now, DOWNSCALE_WINDOW);
        let recent = self.recommendations.iter().filter(|(_, at)| *at >= cutoff).map(|(replicas, _)| *replicas);
        let highest = recent.max().unwrap_or(desired).max(desired);
        self.recommend(desired, now, cutoff);
        highest
    }

    fn stabilize_by_rules(&mut self, current: i32, desired: i32, (up, down): (&Rules, &Rules), now: Timestamp) -> i32 {
        let (up, down) = (before(now, up.window), before(now, down.window));
        let since = |cutoff: Timestamp| self.recommendations.iter().filter(move |(_, at)| *at > cutoff).map(|(replicas, _)| *replicas);
        let lowest = since(up).min().unwrap_or(desired).min(desired);
        let highest = since(down).max().unwrap_or(desired).max(desired);
        let stable = current.max(lowest).min(highest);
        self.recommend(desired, now, up.min(down));
        stable
    }

    /// The size at the beginning of a policy's period.
    fn at_start(&self, policy: &HPAScalingPolicy, current: i32, now: Timestamp) -> i32 {
        let cutoff = before(now, policy.period_seconds);
        let within = |events: &[(i32, Timestamp)]| events.iter().filter(|(_, at)| *at > cutoff).map(|(change, _)| *change).sum::<i32>();
        current - within(&self.ups) + within(&self.downs)
    }

    fn up_limit(&self, rules: &Rules, current: i32, now: Timestamp) -> i32 {
        let proposals = rules.policies.iter().map(|policy| {
            let start = self.at_start(policy, current, now);
            if policy.type_ == "Pods" {
                start.saturating_add(policy.value)
            } else {
                // Rounded up, as a small workload could never grow otherwise.
                (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Min => proposals.min().unwrap_or(i32::MAX),
            Select::Max => proposals.max().unwrap_or(i32::MIN),
        }
    }

    fn down_limit(&self, rules: &Rules, current: i32, now: Timestamp) -> i32 {
        let proposals = rules.policies.iter().map(|policy| {
            let start = self.at_start(policy, current, now);
            if policy.type_ == "Pods" {
                start.saturating_sub(policy.value)
            } else {
                (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Min => proposals.max().unwrap_or(i32::MIN),
            Select::Max => proposals.min().unwrap_or(i32::MAX),
        }
    }

    fn limit_by_rules(&self, Bounds { current, min, max }: Bounds, desired: i32, (up, down): (&Rules, &Rules), now: Timestamp) -> (i32, Why) {
        if desired > current {
            let limit = self.up_limit(up, current, now).max(current);
            let (most, why) = if max > limit { (limit, TOO_FAST) } else { (max, TOO_MANY) };
            if desired > most {
                return (most, why);
            }
        } else if desired < current {
            let limit = self.down_limit(down, current, now).min(current);
            let (least, why) = if min < limit { (limit, TOO_FAST_DOWN) } else { (min, TOO_FEW) };
            if desired < least {
                return (least, why);
            }
        }
        (desired, WITHIN)
    }
}

/// The bounds of an autoscaler without behavior.
fn limit(Bounds { current, min, max }: Bounds, desired: i32) -> (i32, Why) {
    let fastest = (UP_FACTOR * f64::from(current)).max(UP_LEAST) as i32;
    let (most, why) = if max > fastest { (fastest, TOO_FAST) } else { (max, TOO_MANY) };
    if desired < min {
        (min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

#[cfg(test)]
#[path = "behavior_tests.rs"]
mod tests;
