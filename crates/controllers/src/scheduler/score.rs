//! Scores of the nodes that fit, 0 to 100 a plug-in, in whole numbers and normalised as upstream's. Pure.

use kube_rules::taints;

use super::{
    cache::Usage,
    neighbours::Neighbours,
    place::Judged,
    profile::{Plugin, Profile, Strategy},
    rows::{NodeRow, PodRow},
    world::World,
};

/// The best score of a plug-in (upstream: `MaxNodeScore`).
pub(super) const MAX: i64 = 100;

/// Sizes between which images count (upstream: `minThreshold`, `maxContainerThreshold`).
const SMALL_IMAGE: i64 = 23 << 20;
const LARGE_IMAGE: i64 = 1000 << 20;

/// The weighted sum of all plug-ins' scores for each of the `fitting` nodes.
pub(super) fn scores<'a>(
    pod: &PodRow,
    world: &World,
    neighbours: &Neighbours,
    nodes: impl Iterator<Item = Judged<'a>> + Clone,
    fitting: &[Judged<'a>],
) -> Vec<i64> {
    let profile = world.profile.as_ref();
    let mut sums = vec![0_i64; fitting.len()];
    for (&plugin, &weight) in &profile.weights {
        let scores = match plugin {
            Plugin::TaintToleration => normalised(fitting.iter().map(|(_, facts)| facts.taints).collect(), true),
            Plugin::NodeAffinity => normalised(fitting.iter().map(|(_, facts)| facts.preference).collect(), false),
            Plugin::NodeResourcesFit => fitting.iter().map(|(_, facts)| facts.fit).collect(),
            Plugin::NodeResourcesBalancedAllocation => fitting.iter().map(|(_, facts)| facts.balance).collect(),
            Plugin::ImageLocality => images(pod, nodes.clone(), fitting),
            Plugin::PodTopologySpread => neighbours.spread_scores(nodes.clone(), fitting),
            Plugin::InterPodAffinity => neighbours.company_scores(fitting.iter().map(|((_, node, _), _)| *node)),
            _ => continue,
        };
        for (sum, score) in sums.iter_mut().zip(scores) {
            *sum += weight.saturating_mul(score);
        }
    }
    sums
}

/// Shares of the largest value (upstream: `DefaultNormalizeScore`).
fn normalised(counts: Vec<i64>, reverse: bool) -> Vec<i64> {
    let most = counts.iter().copied().max().unwrap_or_default();
    let share = |count: i64| if most == 0 { 0 } else { MAX * count / most };
    counts.into_iter().map(|count| if reverse { MAX - share(count) } else { share(count) }).collect()
}

fn length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// TaintToleration, before it is normalised.
pub(super) fn unpreferred_taints(pod: &PodRow, node: &NodeRow) -> i64 {
    length(node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule" && !taints::is_tolerated(taint, &pod.tolerations)).count())
}

/// NodeAffinity, before it is normalised.
pub(super) fn preference(pod: &PodRow, profile: &Profile, name: &str, node: &NodeRow) -> i64 {
    let terms = pod.preferred.iter().chain(&profile.added_preferences);
    terms.filter(|(_, term)| term.matches(name, &node.labels)).map(|(weight, _)| i64::from(*weight)).sum()
}

/// What a node has of a resource, and what pods use of it with the pod there.
fn allocation(pod: &PodRow, node: &NodeRow, usage: &Usage, name: &str) -> Option<(i64, i64)> {
    let basic = matches!(name, "cpu" | "memory");
    let wanted = pod.weight.get(name).copied().unwrap_or_default();
    // A pod that does not ask for an extended resource is not judged by it.
    if wanted == 0 && !basic && name != "ephemeral-storage" {
        return None;
    }
    let allocatable = node.allocatable.get(name).copied().filter(|amount| *amount != 0)?;
    let used = if basic { &usage.weight } else { &usage.requests };
    Some((allocatable, used.get(name).copied().unwrap_or_default().saturating_add(wanted)))
}

/// `part` of `whole` in per cent, rounded down.
fn per_cent(part: i64, whole: i64) -> i64 {
    i64::try_from(i128::from(part) * i128::from(MAX) / i128::from(whole.max(1))).unwrap_or(MAX)
}

/// NodeResourcesFit.
pub(super) fn fit(pod: &PodRow, profile: &Profile, node: &NodeRow, usage: &Usage) -> i64 {
    let (mut sum, mut weights) = (0, 0);
    for (name, weight) in &profile.fit_resources {
        let Some((allocatable, requested)) = allocation(pod, node, usage, name) else { continue };
        let score = match &profile.strategy {
            Strategy::LeastAllocated if requested > allocatable => 0,
            Strategy::LeastAllocated => per_cent(allocatable - requested, allocatable),
            Strategy::MostAllocated => per_cent(requested.min(allocatable), allocatable),
            Strategy::RequestedToCapacityRatio(shape) => {
                let score = shape_score(shape, if requested > allocatable { MAX } else { per_cent(requested, allocatable) });
                // Upstream counts only resources with a score.
                if score == 0 {
                    continue;
                }
                score
            }
        };
        sum += score * weight;
        weights += weight;
    }
    match (&profile.strategy, weights) {
        (_, 0) => 0,
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "scores are shares of 100")]
        (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

/// The score at a use in per cent: a broken line (upstream: `BuildBrokenLinearFunction`).
fn shape_score(shape: &[(i64, i64)], used: i64) -> i64 {
    let mut before: Option<(i64, i64)> = None;
    for &(at, score) in shape {
        if used <= at {
            return match before {
                Some((from, low)) => low + (score - low) * (used - from) / (at - from).max(1),
                None => score,
            };
        }
        before = Some((at, score));
    }
    before.map_or(0, |(_, score)| score)
}

/// NodeResourcesBalancedAllocation: whether the pod makes the use of the resources more even.
pub(super) fn balance(pod: &PodRow, profile: &Profile, node: &NodeRow, usage: &Usage) -> i64 {
    let wanted = |name: &str| pod.requests.get(name).copied().unwrap_or_default();
    if profile.balanced_resources.iter().all(|name| wanted(name) == 0) {
        return 0;
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for name in &profile.balanced_resources {
        let extended = !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        let allocatable = node.allocatable.get(name).copied().unwrap_or_default();
        if allocatable == 0 || (extended && wanted(name) == 0) {
            continue;
        }
        let used = usage.requests.get(name).copied().unwrap_or_default();
        with.push(fraction(used.saturating_add(wanted(name)), allocatable));
        without.push(fraction(used, allocatable));
    }
    MAX / 2 + (MAX / 2 + evenness(&with) - evenness(&without)) / 2
}

#[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
fn fraction(used: i64, allocatable: i64) -> f64 {
    (used as f64 / allocatable as f64).min(1.0)
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "scores are shares of 100")]
fn evenness(fractions: &[f64]) -> i64 {
    let deviation = match fractions {
        [first, second] => ((first - second) / 2.0).abs(),
        [] | [_] => 0.0,
        all => {
            let count = all.len() as f64;
            let mean = all.iter().sum::<f64>() / count;
            (all.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>() / count).sqrt()
        }
    };
    ((1.0 - deviation) * MAX as f64) as i64
}

/// ImageLocality: how much of the pod's images a node holds; images that few nodes hold count less.
fn images<'a>(pod: &PodRow, nodes: impl Iterator<Item = Judged<'a>>, fitting: &[Judged<'a>]) -> Vec<i64> {
    let mut holders = vec![0_i64; pod.images.len()];
    let mut total = 0_i64;
    for ((_, node, _), _) in nodes {
        total += 1;
        for (image, count) in pod.images.iter().zip(&mut holders) {
            *count += i64::from(node.images.contains_key(image));
        }
    }
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's arithmetic")]
    let scaled = |size: i64, count: i64| (size as f64 * (count as f64 / total.max(1) as f64)) as i64;
    let most = LARGE_IMAGE.saturating_mul(length(pod.containers));
    let score = |node: &NodeRow| {
        let held = pod.images.iter().zip(&holders).filter_map(|(image, count)| Some(scaled(*node.images.get(image)?, *count)));
        let sum = held.fold(0_i64, i64::saturating_add).min(most).max(SMALL_IMAGE);
        MAX * (sum - SMALL_IMAGE) / (most - SMALL_IMAGE).max(1)
    };
    fitting.iter().map(|((_, node, _), _)| score(node)).collect()
}

#[cfg(test)]
#[path = "score_tests.rs"]
mod tests;
