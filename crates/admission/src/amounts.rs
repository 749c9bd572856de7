//! Arithmetic of quantities by resource name, and what pods request and may use (component-helpers/resource, apiserver/pkg/quota/v1).

use crate::value::{amounts, list, lookup, members, text};
use kube_rules::{Amounts, Quantity};
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) fn add(total: &mut Amounts, more: &Amounts) {
    for (name, quantity) in more {
        let sum = total.get(name).map_or(*quantity, |present| *present + *quantity);
        total.insert(name.clone(), sum);
    }
}

/// Raises each amount to at least that of `least`.
pub(crate) fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, quantity) in least {
        if total.get(name).is_none_or(|present| present < quantity) {
            total.insert(name.clone(), *quantity);
        }
    }
}

/// `new` less `old`, nowhere below zero.
pub(crate) fn growth(new: &Amounts, old: &Amounts) -> Amounts {
    let names = new.keys().chain(old.keys());
    let zero = Quantity::ZERO;
    names
        .map(|name| {
            let less = *new.get(name).unwrap_or(&zero) - *old.get(name).unwrap_or(&zero);
            (name.clone(), less.max(zero))
        })
        .collect()
}

/// The amounts with these names.
pub(crate) fn mask<'a>(all: &Amounts, mut wanted: impl FnMut(&str) -> bool + 'a) -> Amounts {
    all.iter().filter(|(name, _)| wanted(name)).map(|(name, quantity)| (name.clone(), *quantity)).collect()
}

/// `a=1,b=2`.
pub(crate) fn print(all: &Amounts) -> String {
    all.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect::<Vec<_>>().join(",")
}

/// Requests or limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Limits,
}

impl Side {
    fn member(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }

    /// Of a container.
    pub(crate) fn of(self, container: &Value) -> Amounts {
        amounts(container, &["resources", self.member()])
    }
}

/// What counts beside the sums of the containers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// What the node has allocated while a resize is under way.
    pub(crate) statuses: bool,
    /// The pod's overhead, and huge pages at pod level.
    pub(crate) overhead: bool,
}

/// Upstream: `PodRequests` and `PodLimits`.
pub(crate) fn of_pod(pod: &Value, side: Side, options: Options) -> Amounts {
    let spec = &pod["spec"];
    let statuses = if options.statuses { statuses(pod) } else { BTreeMap::new() };
    let infeasible = is_resize_infeasible(pod);
    let effective = |container: &Value| {
        let own = side.of(container);
        match statuses.get(text(container, &["name"])) {
            Some(status) => allocated(own, status, side, infeasible),
            None => own,
        }
    };
    let mut total = Amounts::new();
    for container in list(spec, &["containers"]) {
        add(&mut total, &effective(container));
    }
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in list(spec, &["initContainers"]) {
        if text(container, &["restartPolicy"]) == "Always" {
            let own = effective(container);
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut init, &sidecars);
        } else {
            let mut own = side.of(container);
            add(&mut own, &sidecars);
            raise(&mut init, &own);
        }
    }
    raise(&mut total, &init);
    // LimitRanger knows no huge pages at pod level.
    let pod_level = |name: &str| matches!(name, "cpu" | "memory") || (options.overhead && name.starts_with("hugepages-"));
    total.extend(mask(&amounts(spec, &["resources", side.member()]), pod_level));
    if options.overhead {
        let overhead = amounts(spec, &["overhead"]);
        match side {
            Side::Requests => add(&mut total, &overhead),
            Side::Limits => {
                let limited = mask(&overhead, |name| total.get(name).is_some_and(|limit| !limit.is_zero()));
                add(&mut total, &limited);
            }
        }
    }
    total
}

/// Statuses that say what a container has, by name.
fn statuses(pod: &Value) -> BTreeMap<&str, &Value> {
    let all = ["containerStatuses", "initContainerStatuses"].into_iter().flat_map(|member| list(pod, &["status", member]));
    all.filter(|status| lookup(status, &["resources"]).is_some()).map(|status| (text(status, &["name"]), status)).collect()
}

/// While a resize is under way, the larger of what is wanted and what the container has counts.
fn allocated(own: Amounts, status: &Value, side: Side, infeasible: bool) -> Amounts {
    let mut total = if infeasible { Amounts::new() } else { own };
    raise(&mut total, &amounts(status, &["resources", side.member()]));
    if side == Side::Requests {
        raise(&mut total, &amounts(status, &["allocatedResources"]));
    }
    total
}

fn is_resize_infeasible(pod: &Value) -> bool {
    let mut pending = list(pod, &["status", "conditions"]).iter().filter(|one| text(one, &["type"]) == "PodResizePending");
    pending.next().is_some_and(|one| text(one, &["reason"]) == "Infeasible")
}

/// Whether a pod says for itself, above its containers, what it needs.
pub(crate) fn has_pod_level(spec: &Value) -> bool {
    let known = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    ["requests", "limits"].into_iter().any(|side| members(spec, &["resources", side]).any(|(name, _)| known(name)))
}
