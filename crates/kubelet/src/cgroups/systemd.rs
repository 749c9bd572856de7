//! Slices of systemd as properties of its D-Bus interface (libcontainer's systemd/v1.go, v2.go, common.go).

use std::fmt;

use super::limits::Limits;
use super::names::Name;

/// A property of a unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Property {
    pub name: &'static str,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
    Bytes(Vec<u8>),
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.name)?;
        match &self.value {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::List(list) => write!(f, "{}", list.join(",")),
            Value::Bytes(bytes) => write!(f, "{bytes:?}"),
        }
    }
}

fn number(name: &'static str, number: u64) -> Property {
    Property { name, value: Value::Number(number) }
}

/// Of a new slice.
pub(crate) fn start(name: &Name, unified: bool) -> Vec<Property> {
    let flag = |name, flag| Property { name, value: Value::Flag(flag) };
    let parent = name.parent().map(|parent| parent.unit()).unwrap_or_default();
    vec![
        Property { name: "Description", value: Value::Text(format!("libcontainer container {}", name.unit())) },
        Property { name: "Wants", value: Value::List(vec![parent]) },
        flag("MemoryAccounting", true),
        flag("CPUAccounting", true),
        flag(if unified { "IOAccounting" } else { "BlockIOAccounting" }, true),
        flag("TasksAccounting", true),
        flag("DefaultDependencies", false),
    ]
}

/// Of limits. systemd knows whole percents of a processor: a quota is raised to the next one, in the limits too, so that the group's file and
/// the unit say the same.
pub(crate) fn limits(limits: &mut Limits, unified: bool) -> Vec<Property> {
    let mut all = Vec::new();
    if let Some(memory) = limits.memory.filter(|memory| *memory != 0) {
        all.push(number(if unified { "MemoryMax" } else { "MemoryLimit" }, u64::try_from(memory).unwrap_or(u64::MAX)));
    }
    if let Some(shares) = limits.shares {
        all.push(if unified { number("CPUWeight", super::plan::weight(shares)) } else { number("CPUShares", shares) });
    }
    all.extend(limits.period.map(|period| number("CPUQuotaPeriodUSec", period)));
    if limits.quota.is_some_and(|quota| quota != 0) || limits.period.is_some() {
        let period = limits.period.unwrap_or(100_000).max(1);
        let quota = limits.quota.and_then(|quota| u64::try_from(quota).ok()).filter(|quota| *quota > 0);
        let per_second = quota.map(|quota| (quota.saturating_mul(1_000_000) / period).min(1 << 62).next_multiple_of(10_000));
        if let Some(per_second) = per_second {
            limits.quota = i64::try_from(per_second.saturating_mul(period) / 1_000_000).ok();
        }
        all.push(number("CPUQuotaPerSecUSec", per_second.unwrap_or(u64::MAX)));
    }
    if let Some(pids) = limits.pids {
        all.push(number("TasksMax", u64::try_from(pids).map_or(u64::MAX, |pids| pids.max(1))));
    }
    if let Some(mask) = limits.cpus.as_deref().and_then(mask) {
        all.push(Property { name: "AllowedCPUs", value: Value::Bytes(mask) });
    }
    all
}

/// A list such as `0-3,7` as bits, the lowest first. None where it is none.
fn mask(list: &str) -> Option<Vec<u8>> {
    /// More processors than kernels are built for.
    const MOST: usize = 8192;
    let mut mask = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST {
            return None;
        }
        for cpu in first..=last {
            if mask.len() <= cpu / 8 {
                mask.resize(cpu / 8 + 1, 0);
            }
            mask[cpu / 8] |= 1 << (cpu % 8);
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mut wanted: Limits, unified: bool) -> (String, Option<i64>) {
        let all: Vec<_> = limits(&mut wanted, unified).iter().map(ToString::to_string).collect();
        (all.join(" "), wanted.quota)
    }

    #[test]
    fn limits_are_properties_of_units() {
        let all = Limits {
            shares: Some(1024),
            quota: Some(12_345),
            period: Some(100_000),
            memory: Some(4096),
            pids: Some(10),
            cpus: Some("0-1,9".into()),
            huge_pages: None,
        };
        let rest = "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=130000 TasksMax=10 AllowedCPUs=[3, 2]";
        assert_eq!(shown(all.clone(), false), (format!("MemoryLimit=4096 CPUShares=1024 {rest}"), Some(13_000)));
        assert_eq!(shown(all, true), (format!("MemoryMax=4096 CPUWeight=39 {rest}"), Some(13_000)));
        let none = Limits { quota: Some(-1), period: Some(50_000), pids: Some(-1), ..Limits::default() };
        let text = format!("CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec={0} TasksMax={0}", u64::MAX);
        assert_eq!(shown(none, true), (text, Some(-1)));
        assert_eq!(shown(Limits { pids: Some(0), ..Limits::default() }, true).0, "TasksMax=1");
        assert_eq!(shown(Limits::default(), true).0, "");
    }

    #[test]
    fn slices_want_the_one_above_them() {
        let properties = |name: &str, unified| start(&Name::parse(name), unified).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(
            properties("/kubepods/burstable", false),
            "Description=\"libcontainer container kubepods-burstable.slice\" Wants=kubepods.slice MemoryAccounting=true CPUAccounting=true \
             BlockIOAccounting=true TasksAccounting=true DefaultDependencies=false"
        );
        assert!(properties("/kubepods", true).contains("Wants=-.slice MemoryAccounting=true CPUAccounting=true IOAccounting=true"));
    }

    #[test]
    fn lists_of_processors_are_masks() {
        for (list, wanted) in [("0", Some(vec![1])), ("8", Some(vec![0, 1])), ("1-2", Some(vec![6])), ("", None), ("a", None), ("99999", None)] {
            assert_eq!(mask(list), wanted, "{list:?}");
        }
    }
}
