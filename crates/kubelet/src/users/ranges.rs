//! Ranges of the machine's ids, one for each pod: pure.

use std::collections::BTreeMap;

/// Ranges are a multiple of this (upstream: `userNsUnitLength`).
pub(crate) const UNIT: u32 = 65536;
/// The user whose subordinate ids are those of pods.
const USER: &str = "kubelet";

/// Why there are no ids. The texts are upstream's, but for those of the machine's files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RangeError {
    #[error("kubelet user namespace length {0} is not a multiple of {UNIT}")]
    Length(u32),
    #[error("kubelet user assigned ID {first} is not a multiple of {length}")]
    First { first: u32, length: u32 },
    #[error("kubelet user assigned ID {first} must be greater or equal to {length}")]
    Low { first: u32, length: u32 },
    #[error("kubelet user assigned IDs length {whole} is not a multiple of {length}")]
    Whole { whole: u32, length: u32 },
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFew(u32),
    #[error("user {USER} has {count} ranges in {file}; it needs one, as `{USER}:65536:7208960`")]
    Count { file: &'static str, count: usize },
    #[error("the range {line:?} of user {USER} in {file} cannot be read; write NAME:FIRST:COUNT")]
    Line { file: &'static str, line: String },
    #[error("mismatched subuids and subgids for user {USER:?}")]
    Mismatch,
    #[error("could not find an empty slot to allocate a user namespace")]
    Full,
    #[error("wrong user namespace length {0}")]
    WrongLength(u32),
    #[error("wrong user namespace offset specified {0}")]
    WrongOffset(u32),
    #[error("different user namespace range already used by pod {0:?}")]
    Different(String),
    #[error("id {0} is out of range")]
    OutOfRange(u32),
    #[error("range picked for pod {0:?} already taken")]
    Taken(String),
}

/// Consecutive ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub first: u32,
    pub length: u32,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        let end = |range: &Range| u64::from(range.first) + u64::from(range.length);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

/// The ids that pods may have. Upstream asks `getsubids`, which reads the same files (and directories such as LDAP, which are not asked
/// here). `uids` and `gids` are /etc/subuid and /etc/subgid where there are any.
pub(crate) fn of_machine(passwd: &str, uids: Option<&str>, gids: Option<&str>, ids_per_pod: u32) -> Result<Range, RangeError> {
    let all = Range { first: ids_per_pod, length: 0_u32.wrapping_sub(ids_per_pod) };
    let number = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == USER);
    let (Some(user), Some(uids), Some(gids)) = (number, uids, gids) else { return Ok(all) };
    let number = user.get(2).copied().unwrap_or_default();
    let (uids, gids) = (subordinate(uids, number, "/etc/subuid")?, subordinate(gids, number, "/etc/subgid")?);
    if uids == gids { Ok(uids) } else { Err(RangeError::Mismatch) }
}

/// The one range of the user in a file of subordinate ids.
fn subordinate(text: &str, number: &str, file: &'static str) -> Result<Range, RangeError> {
    let of_user = |line: &&str| line.split(':').next().is_some_and(|name| name == USER || (name == number && !number.is_empty()));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(of_user).collect();
    let [line] = lines[..] else { return Err(RangeError::Count { file, count: lines.len() }) };
    let wrong = || RangeError::Line { file, line: line.chars().take(128).collect() };
    let parse = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    match line.split(':').collect::<Vec<_>>()[..] {
        [_, first, length] => Ok(Range { first: parse(first)?, length: parse(length)? }),
        _ => Err(wrong()),
    }
}

/// Which pod has which range.
#[derive(Debug)]
pub(crate) struct Ranges {
    first: u32,
    count: u32,
    length: u32,
    used: BTreeMap<String, Range>,
    /// Of pods that have ids which are not among those to be given.
    foreign: BTreeMap<String, Range>,
}

impl Ranges {
    pub(crate) fn new(whole: Range, length: u32, max_pods: u32) -> Result<Self, RangeError> {
        let Range { first, length: all } = whole;
        if length == 0 || !length.is_multiple_of(UNIT) {
            return Err(RangeError::Length(length));
        }
        if !first.is_multiple_of(length) {
            return Err(RangeError::First { first, length });
        }
        // Nobody may be the machine's own root.
        if first < length {
            return Err(RangeError::Low { first, length });
        }
        if !all.is_multiple_of(length) {
            return Err(RangeError::Whole { whole: all, length });
        }
        // Ids end at 2^32.
        let count = (all / length).min(((1_u64 << 32) - u64::from(first)).div_euclid(length.into()) as u32);
        if count < max_pods {
            return Err(RangeError::TooFew(max_pods));
        }
        Ok(Ranges { first, count, length, used: BTreeMap::new(), foreign: BTreeMap::new() })
    }

    /// Notes the range that a pod has. One that is not to be given is kept from others all the same.
    pub(crate) fn keep(&mut self, pod: &str, range: Range) -> Result<(), RangeError> {
        let checked = self.check(pod, range);
        match &checked {
            Ok(()) => drop(self.used.insert(pod.to_owned(), range)),
            Err(_) if !self.used.contains_key(pod) => drop(self.foreign.insert(pod.to_owned(), range)),
            Err(_) => {}
        }
        checked
    }

    fn check(&self, pod: &str, range: Range) -> Result<(), RangeError> {
        let Range { first, length } = range;
        if length != self.length {
            return Err(RangeError::WrongLength(length));
        }
        if !first.is_multiple_of(length) {
            return Err(RangeError::WrongOffset(first));
        }
        if self.used.get(pod).is_some_and(|known| *known != range) {
            return Err(RangeError::Different(pod.to_owned()));
        }
        let slot = (first / length).checked_sub(self.first / length).filter(|slot| *slot < self.count);
        if slot.is_none() {
            return Err(RangeError::OutOfRange(first));
        }
        if self.used.iter().any(|(other, used)| other != pod && *used == range) {
            return Err(RangeError::Taken(pod.to_owned()));
        }
        Ok(())
    }

    /// The lowest range that nobody has.
    pub(crate) fn give(&mut self, pod: &str) -> Result<Range, RangeError> {
        let taken: std::collections::BTreeSet<u32> = self.used.values().map(|range| range.first).collect();
        let range = |slot: u32| Range { first: self.first + slot * self.length, length: self.length };
        let is_free = |range: &Range| !taken.contains(&range.first) && !self.foreign.values().any(|foreign| foreign.overlaps(range));
        let free = (0..self.count).map(range).find(is_free).ok_or(RangeError::Full)?;
        self.used.insert(pod.to_owned(), free);
        Ok(free)
    }

    pub(crate) fn release(&mut self, pod: &str) {
        self.used.remove(pod);
        self.foreign.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "root:x:0:0::/root:/bin/sh\n";

    #[test]
    fn the_machines_files_say_which_ids_there_are() {
        let kubelet = format!("{ROOT}kubelet:x:998:998::/:/bin/false\n");
        let of = |passwd: &str, uids: Option<&str>, gids: Option<&str>| of_machine(passwd, uids, gids, UNIT).map(|range| (range.first, range.length));
        let all = Ok((65536, u32::MAX - 65535));
        let one = "other:1:2\nkubelet:131072:7208960\n";
        assert_eq!(of(ROOT, Some(one), Some(one)), all, "there is no such user");
        assert_eq!(of(&kubelet, None, None), all);
        assert_eq!(of(&kubelet, Some(one), Some(one)), Ok((131_072, 7_208_960)));
        assert_eq!(of(&kubelet, Some("998:131072:7208960"), Some(one)), Ok((131_072, 7_208_960)));
        let refused = |uids: &str, gids: &str| of(&kubelet, Some(uids), Some(gids)).unwrap_err().to_string();
        assert_eq!(refused(one, "kubelet:131072:65536"), "mismatched subuids and subgids for user \"kubelet\"");
        assert_eq!(refused("", one), "user kubelet has 0 ranges in /etc/subuid; it needs one, as `kubelet:65536:7208960`");
        assert!(refused(one, &format!("{one}kubelet:1:2\n")).starts_with("user kubelet has 2 ranges in /etc/subgid"));
        for line in ["kubelet:1", "kubelet:x:1", "kubelet:1:4294967296", "kubelet:1:2:3"] {
            assert!(refused(line, one).starts_with(&format!("the range {line:?} of user kubelet")), "{line}");
        }
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused_in_upstreams_words() {
        let refused = |first, all, length, pods| Ranges::new(Range { first, length: all }, length, pods).unwrap_err().to_string();
        assert_eq!(refused(65536, 65536, 65537, 1), "kubelet user namespace length 65537 is not a multiple of 65536");
        assert_eq!(refused(65536, 65536, 0, 1), "kubelet user namespace length 0 is not a multiple of 65536");
        assert_eq!(refused(65537, 65536, 65536, 1), "kubelet user assigned ID 65537 is not a multiple of 65536");
        assert_eq!(refused(0, 65536, 65536, 1), "kubelet user assigned ID 0 must be greater or equal to 65536");
        assert_eq!(refused(65536, 65537, 65536, 1), "kubelet user assigned IDs length 65537 is not a multiple of 65536");
        assert_eq!(refused(65536, 65536 * 2, 65536, 3), "kubelet user assigned IDs are not enough to support 3 pods");
        assert_eq!(refused(u32::MAX - 65535, 65536 * 2, 65536, 2), "kubelet user assigned IDs are not enough to support 2 pods", "ids end there");
    }

    #[test]
    fn pods_get_the_lowest_free_range_and_keep_it() {
        let mut ranges = Ranges::new(Range { first: UNIT * 2, length: UNIT * 4 }, UNIT, 3).unwrap();
        let at = |slot: u32| Range { first: UNIT * slot, length: UNIT };
        assert_eq!((ranges.give("a"), ranges.give("b")), (Ok(at(2)), Ok(at(3))));
        assert_eq!(ranges.keep("a", at(2)), Ok(()));
        assert_eq!(ranges.keep("c", at(4)), Ok(()));
        assert_eq!(ranges.give("d"), Ok(at(5)));
        assert_eq!(ranges.give("e"), Err(RangeError::Full));
        ranges.release("b");
        assert_eq!(ranges.give("e"), Ok(at(3)));
        for (pod, range, why) in [
            ("x", Range { first: UNIT, length: 1 }, "wrong user namespace length 1"),
            ("x", Range { first: UNIT + 1, length: UNIT }, "wrong user namespace offset specified 65537"),
            ("a", at(4), "different user namespace range already used by pod \"a\""),
            ("x", at(1), "id 65536 is out of range"),
            ("x", at(6), "id 393216 is out of range"),
            ("x", at(2), "range picked for pod \"x\" already taken"),
        ] {
            assert_eq!(ranges.keep(pod, range).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn ids_that_a_pod_has_by_other_rules_are_given_to_no_other() {
        let mut ranges = Ranges::new(Range { first: UNIT, length: UNIT * 8 }, UNIT, 3).unwrap();
        assert!(ranges.keep("old", Range { first: UNIT * 2, length: UNIT * 2 }).is_err());
        let firsts: Vec<u32> = ["a", "b", "c"].map(|pod| ranges.give(pod).unwrap().first / UNIT).to_vec();
        assert_eq!(firsts, [1, 4, 5]);
        ranges.release("old");
        assert_eq!(ranges.give("d").unwrap().first, UNIT * 2);
    }
}
