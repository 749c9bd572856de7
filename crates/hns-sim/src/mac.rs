//! MAC addresses in the forms HNS reads and writes.

use std::fmt;
use std::str::FromStr;

use hcn::Guid;

/// A MAC address. Prints as HNS prints it, with dashes and capitals; colons and small letters are read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address that an endpoint gets from the pool of its network: Microsoft's prefix, then digits of the ids.
    ///
    /// `attempt` counts up until the address is free.
    pub fn from_pool(network: &Guid, endpoint: &Guid, attempt: u16) -> Self {
        let [pool, page, ..] = *network.0.as_bytes();
        let [.., high, low] = *endpoint.0.as_bytes();
        let offset = (u16::from_be_bytes([high, low]).wrapping_add(attempt) & 0x0fff).to_be_bytes();
        Self([0x00, 0x15, 0x5d, pool, page & 0xf0 | offset[0], offset[1]])
    }
}

impl Mac {
    /// The first and the last address of a network's own pool.
    pub fn pool(network: &Guid) -> [Self; 2] {
        let [pool, page, ..] = *network.0.as_bytes();
        [Self([0x00, 0x15, 0x5d, pool, page & 0xf0, 0x00]), Self([0x00, 0x15, 0x5d, pool, page | 0x0f, 0xff])]
    }

    /// A distributed router's address: each overlay that is made gets another one.
    pub fn router() -> Self {
        let [.., a, b, c] = *Guid::random().0.as_bytes();
        Self([0x00, 0x15, 0x5d, a, b, c])
    }

    pub fn to_number(self) -> u64 {
        self.0.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
    }

    /// From a number's low 48 bits.
    pub fn from_number(number: u64) -> Self {
        let [_, _, bytes @ ..] = number.to_be_bytes();
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}-{b:02X}-{c:02X}-{d:02X}-{e:02X}-{g:02X}")
    }
}

impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split(['-', ':']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(())?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        // A group address is no interface's.
        if parts.next().is_some() || bytes[0] & 1 == 1 || bytes == [0; 6] { Err(()) } else { Ok(Self(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_parses_both_forms_and_refuses_others() {
        let mac: Mac = "00:15:5d:aa:bb:0c".parse().unwrap();
        assert_eq!(mac.to_string(), "00-15-5D-AA-BB-0C");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for bad in ["", "00-15-5D-AA-BB", "00-15-5D-AA-BB-CC-DD", "01-15-5D-AA-BB-CC", "00-00-00-00-00-00", "0-15-5D-AA-BB-CC", "zz-15-5D-AA-BB-CC"] {
            assert_eq!(bad.parse::<Mac>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn mac_pool_has_4096_addresses() {
        let (network, endpoint) = (Guid::random(), Guid::random());
        let all: std::collections::BTreeSet<_> = (0..4096).map(|attempt| Mac::from_pool(&network, &endpoint, attempt)).collect();
        assert_eq!(all.len(), 4096);
        assert!(all.iter().all(|mac| mac.0[..4] == [0x00, 0x15, 0x5d, network.0.as_bytes()[0]]));
    }
}
