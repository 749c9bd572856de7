//! Keys and values of elements, held in place.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;

/// At most `N` bytes, held in place: for maps of very many elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Bytes<N> {
    /// No bytes.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; N] };

    /// The bytes of a slice, when there are no more than `N`.
    pub fn of(slice: &[u8]) -> Option<Self> {
        (slice.len() <= N).then(|| Self::EMPTY.and(slice))
    }

    /// With these at the end, as far as there is room.
    #[must_use]
    pub fn and(mut self, more: &[u8]) -> Self {
        for (to, from) in self.bytes.iter_mut().skip(self.len.into()).zip(more) {
            *to = *from;
            self.len += 1;
        }
        self
    }

    /// With an address at the end.
    #[must_use]
    pub fn ip(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.and(&ip.octets()),
            IpAddr::V6(ip) => self.and(&ip.octets()),
        }
    }

    /// With a port at the end, filled up to four bytes as a part of a concatenation.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.and(&[high, low, 0, 0])
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
