//! Ranges of addresses: networks without their exceptions.

use std::net::IpAddr;

use ipnet::IpNet;

/// From the first address to the last, both in it, of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    v6: bool,
    first: u128,
    last: u128,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn address(v6: bool, number: u128) -> IpAddr {
    if v6 { IpAddr::V6(number.into()) } else { IpAddr::V4((number as u32).into()) }
}

impl Range {
    /// The addresses of a network.
    pub fn of(net: IpNet) -> Self {
        Self { v6: net.addr().is_ipv6(), first: number(net.network()), last: number(net.broadcast()) }
    }

    pub fn is_v6(self) -> bool {
        self.v6
    }

    pub fn first(self) -> IpAddr {
        address(self.v6, self.first)
    }

    pub fn last(self) -> IpAddr {
        address(self.v6, self.last)
    }

    pub fn contains(self, ip: IpAddr) -> bool {
        ip.is_ipv6() == self.v6 && (self.first..=self.last).contains(&number(ip))
    }

    /// What both have.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (self.v6 == other.v6 && first <= last).then_some(Self { v6: self.v6, first, last })
    }

    /// The fewest networks that are together this range.
    pub fn nets(self) -> Vec<IpNet> {
        let width: u32 = if self.v6 { 128 } else { 32 };
        // One less than the number of addresses of a block.
        let span = |bits: u32| 1u128.checked_shl(bits).map_or(u128::MAX, |size| size - 1);
        let (mut nets, mut at) = (Vec::new(), self.first);
        loop {
            // The largest aligned block that begins here and does not pass the end.
            let mut bits = at.trailing_zeros().min(width);
            while span(bits) > self.last - at {
                bits -= 1;
            }
            nets.extend(IpNet::new(address(self.v6, at), (width - bits) as u8));
            match (at + span(bits)).checked_add(1) {
                Some(next) if next <= self.last => at = next,
                _ => return nets,
            }
        }
    }
}

/// Sorted, without overlaps, neighbours joined.
pub fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut result: Vec<Range> = Vec::new();
    for range in ranges {
        match result.last_mut() {
            Some(before) if before.v6 == range.v6 && range.first <= before.last.saturating_add(1) => before.last = before.last.max(range.last),
            _ => result.push(range),
        }
    }
    result
}

/// The addresses of a network that lie in none of `except`. The work grows with the number of exceptions, not with its square: anybody who
/// may write policies chooses it.
pub fn without(net: IpNet, except: &[IpNet]) -> Vec<Range> {
    let whole = Range::of(net);
    let holes = merged(except.iter().copied().map(Range::of).collect());
    let (mut left, mut rest) = (Vec::new(), Some(whole));
    for gone in holes.into_iter().filter_map(|hole| whole.intersection(hole)) {
        let Some(range) = rest else { break };
        if gone.first > range.first {
            left.push(Range { last: gone.first - 1, ..range });
        }
        rest = gone.last.checked_add(1).filter(|first| *first <= whole.last).map(|first| Range { first, ..whole });
    }
    left.extend(rest);
    left
}

/// What both lists have. Each is in the form of [`merged`].
pub fn meet(one: &[Range], other: &[Range]) -> Vec<Range> {
    let (mut one, mut other, mut both) = (one.iter().peekable(), other.iter().peekable(), Vec::new());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        both.extend(a.intersection(**b));
        let passed = if (a.v6, a.last) <= (b.v6, b.last) { &mut one } else { &mut other };
        passed.next();
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn nets(text: &str, except: &[&str]) -> Vec<String> {
        let except: Vec<IpNet> = except.iter().map(|text| net(text)).collect();
        without(net(text), &except).into_iter().flat_map(Range::nets).map(|net| net.to_string()).collect()
    }

    #[test]
    fn exceptions_are_cut_out_of_a_network() {
        for (block, except, expected) in [
            ("10.0.0.0/24", vec![], vec!["10.0.0.0/24"]),
            ("10.0.0.0/24", vec!["10.0.0.0/25"], vec!["10.0.0.128/25"]),
            ("10.0.0.0/30", vec!["10.0.0.1/32"], vec!["10.0.0.0/32", "10.0.0.2/31"]),
            ("10.0.0.0/30", vec!["10.0.0.1/32", "10.0.0.2/32"], vec!["10.0.0.0/32", "10.0.0.3/32"]),
            ("10.0.0.0/24", vec!["10.0.0.0/8"], vec![]),
            ("10.0.0.0/24", vec!["fd00::/8"], vec!["10.0.0.0/24"]),
            ("0.0.0.0/0", vec!["128.0.0.0/1"], vec!["0.0.0.0/1"]),
            ("0.0.0.0/0", vec![], vec!["0.0.0.0/0"]),
            ("::/0", vec![], vec!["::/0"]),
            ("::/0", vec!["8000::/1"], vec!["::/1"]),
            ("::/0", vec!["::/1"], vec!["8000::/1"]),
        ] {
            assert_eq!(nets(block, &except), expected, "{block} without {except:?}");
        }
    }

    #[test]
    fn lists_meet_where_both_have_an_address() {
        let list = |nets: &[&str]| merged(nets.iter().map(|text| Range::of(net(text))).collect());
        let both = meet(&list(&["10.0.0.0/24", "10.0.2.0/24", "fd00::/64"]), &list(&["10.0.0.128/25", "10.0.1.0/24", "10.0.2.0/31", "fd00::/96"]));
        let text: Vec<String> = both.into_iter().flat_map(Range::nets).map(|net| net.to_string()).collect();
        assert_eq!(text, ["10.0.0.128/25", "10.0.2.0/31", "fd00::/96"]);
        assert!(meet(&list(&["10.0.0.0/8"]), &[]).is_empty());
    }

    #[test]
    fn overlaps_and_neighbours_are_joined() {
        let ranges = ["10.0.1.0/24", "10.0.0.0/24", "10.0.0.128/25", "10.0.3.0/24", "fd00::/64"].map(|text| Range::of(net(text)));
        let text: Vec<String> = merged(ranges.into()).into_iter().flat_map(Range::nets).map(|net| net.to_string()).collect();
        assert_eq!(text, ["10.0.0.0/23", "10.0.3.0/24", "fd00::/64"]);
    }
}
