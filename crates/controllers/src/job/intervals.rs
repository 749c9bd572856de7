//! Sets of completion indexes as the API writes them: `0,2-5,7` (upstream: `orderedIntervals` of `indexed_job_utils.go`).

use std::fmt;

/// Ordered, disjoint ranges of indexes, both ends included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Intervals(Vec<(i32, i32)>);

impl Intervals {
    /// Reads what the API says; what cannot be read is passed over, and indexes from `completions` on do not count.
    pub fn parse(text: &str, completions: i32) -> Self {
        let mut all = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else { continue };
            if first >= completions {
                break;
            }
            all.push(first, last.min(completions - 1));
        }
        all
    }

    /// These indexes, which are in order.
    fn of(indexes: impl IntoIterator<Item = i32>) -> Self {
        let mut all = Self::default();
        indexes.into_iter().for_each(|index| all.push(index, index));
        all
    }

    fn push(&mut self, first: i32, last: i32) {
        match self.0.last_mut() {
            Some(end) if first <= end.1.saturating_add(1) => end.1 = end.1.max(last),
            _ => self.0.push((first, last)),
        }
    }

    /// The indexes of both.
    pub fn merged(&self, other: &Self) -> Self {
        let mut parts: Vec<(i32, i32)> = self.0.iter().chain(&other.0).copied().collect();
        parts.sort_unstable();
        let mut all = Self::default();
        parts.into_iter().for_each(|(first, last)| all.push(first, last));
        all
    }

    /// These indexes as well, which are in order.
    pub fn with(&self, indexes: impl IntoIterator<Item = i32>) -> Self {
        self.merged(&Self::of(indexes))
    }

    /// How many indexes there are.
    pub fn total(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn has(&self, index: i32) -> bool {
        let after = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(after).is_some_and(|(first, _)| *first <= index)
    }

    /// How many indexes are in both.
    pub fn shared(&self, other: &Self) -> i32 {
        let overlap = |one: &(i32, i32)| other.0.iter().map(|two| (one.1.min(two.1) - one.0.max(two.0) + 1).max(0)).sum::<i32>();
        self.0.iter().map(overlap).sum()
    }

    /// The first `count` indexes below `completions` that are missing.
    pub fn missing(&self, count: usize, completions: i32) -> Vec<i32> {
        let mut found = Vec::new();
        let mut candidate = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            let room = count - found.len();
            found.extend((candidate..first.min(completions)).take(room));
            candidate = candidate.max(last.saturating_add(1));
        }
        found
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            if place > 0 {
                write!(f, ",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_api_says_is_read() {
        for (text, completions, expected) in [
            ("", 10, ""),
            ("0", 10, "0"),
            ("0,1", 10, "0,1"),
            ("0-2,4", 10, "0-2,4"),
            ("0-2,3,5-9", 7, "0-3,5,6"),
            ("1-20", 5, "1-4"),
            ("7", 5, ""),
            ("x,1-y,3", 10, "3"),
        ] {
            assert_eq!(Intervals::parse(text, completions).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn missing_indexes() {
        for (done, count, completions, expected) in [
            ("", 2, 5, vec![0, 1]),
            ("0-2", 5, 5, vec![3, 4]),
            ("1,3", 2, 5, vec![0, 2]),
            ("1,3", 9, 5, vec![0, 2, 4]),
            ("0-4", 3, 5, vec![]),
            ("2", 0, 5, vec![]),
        ] {
            assert_eq!(Intervals::parse(done, 100).missing(count, completions), expected, "{done}");
        }
    }

    proptest! {
        #[test]
        fn intervals_are_sets(one: std::collections::BTreeSet<u8>, two: std::collections::BTreeSet<u8>) {
            let of = |set: &std::collections::BTreeSet<u8>| Intervals::of(set.iter().map(|index| i32::from(*index)));
            let (first, second) = (of(&one), of(&two));
            prop_assert_eq!(Intervals::parse(&first.to_string(), 256), first.clone());
            prop_assert_eq!(first.merged(&second), of(&one.union(&two).copied().collect()));
            prop_assert_eq!(first.shared(&second) as usize, one.intersection(&two).count());
            prop_assert_eq!(first.total() as usize, one.len());
            prop_assert!((0..=255_u8).all(|index| first.has(index.into()) == one.contains(&index)));
            let missing: Vec<i32> = (0..256).filter(|index| !first.has(*index)).take(7).collect();
            prop_assert_eq!(first.missing(7, 256), missing);
        }
    }
}
