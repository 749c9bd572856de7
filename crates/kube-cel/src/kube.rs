//! Kubernetes' types in expressions: addresses, URLs, quantities, versions, formats.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use kube_rules::Quantity;
use semver::Version;

use crate::formats::Format;
use crate::urls::{self, Url};
use crate::value::{Result, Value, error, no_overload};

#[derive(Clone, Debug)]
pub enum Opaque {
    Ip(IpAddr),
    Cidr(IpNet),
    Url(Url),
    Quantity(Quantity),
    Semver(Version),
    Format(&'static Format),
}

impl Opaque {
    pub fn type_name(&self) -> &'static str {
        match self {
            Opaque::Ip(_) => "net.IP",
            Opaque::Cidr(_) => "net.CIDR",
            Opaque::Url(_) => "kubernetes.URL",
            Opaque::Quantity(_) => "kubernetes.Quantity",
            Opaque::Semver(_) => "kubernetes.Semver",
            Opaque::Format(_) => "kubernetes.NamedFormat",
        }
    }

    /// Bytes of addresses; one for everything else.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Opaque::Ip(IpAddr::V4(_)) => 4,
            Opaque::Ip(IpAddr::V6(_)) => 16,
            Opaque::Cidr(net) => u64::from(net.prefix_len().div_ceil(8)),
            _ => 1,
        }
    }
}

impl PartialEq for Opaque {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Opaque::Ip(a), Opaque::Ip(b)) => a == b,
            (Opaque::Cidr(a), Opaque::Cidr(b)) => a == b,
            (Opaque::Url(a), Opaque::Url(b)) => a == b,
            (Opaque::Quantity(a), Opaque::Quantity(b)) => a == b,
            (Opaque::Semver(a), Opaque::Semver(b)) => a.cmp_precedence(b) == Ordering::Equal,
            (Opaque::Format(a), Opaque::Format(b)) => a.name == b.name,
            _ => false,
        }
    }
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opaque::Ip(ip) => ip.fmt(f),
            Opaque::Cidr(net) => net.fmt(f),
            Opaque::Url(url) => url.fmt(f),
            Opaque::Quantity(quantity) => quantity.fmt(f),
            Opaque::Semver(version) => version.fmt(f),
            Opaque::Format(format) => f.write_str(format.name),
        }
    }
}

fn opaque<'a>(opaque: Opaque) -> Value<'a> {
    Value::Opaque(Arc::new(opaque))
}

/// The opaque values among the arguments, when there is nothing else.
fn opaques<'v>(args: &'v [Value]) -> Vec<&'v Opaque> {
    let found = args.iter().filter_map(|arg| match arg {
        Value::Opaque(opaque) => Some(&**opaque),
        _ => None,
    });
    found.collect()
}

fn parse_ip(text: &str) -> std::result::Result<IpAddr, String> {
    if text.contains('%') && text.split('%').next().is_some_and(|address| address.parse::<IpAddr>().is_ok()) {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    let ip: IpAddr = text
        .parse()
        .map_err(|_| format!("IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"))?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed")),
        ip => Ok(ip),
    }
}

fn parse_cidr(text: &str) -> std::result::Result<IpNet, String> {
    let failed = |reason: &str| format!("network address parse error during conversion from string: netip.ParsePrefix({text:?}): {reason}");
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| failed("no '/'"))?;
    if address.contains('%') {
        return Err(failed("IPv6 zones cannot be present in a prefix"));
    }
    let ip: IpAddr = address.parse().map_err(|_| failed(&format!("ParseAddr({address:?}): unable to parse IP")))?;
    let plain = !bits.is_empty() && bits.bytes().all(|c| c.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let prefix: u8 = match bits.parse() {
        Ok(prefix) if plain => prefix,
        _ => return Err(failed(&format!("bad bits after slash: {bits:?}"))),
    };
    let net = IpNet::new(ip, prefix).map_err(|_| failed("prefix length out of range"))?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed")),
        _ => Ok(net),
    }
}

pub fn ip<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("ip", [Value::String(text)]) => parse_ip(text).map(|ip| opaque(Opaque::Ip(ip))).or_else(error),
        ("isIP", [Value::String(text)]) => Ok(Value::Bool(parse_ip(text).is_ok())),
        ("ip.isCanonical", [Value::String(text)]) => parse_ip(text).map(|ip| Value::Bool(ip.to_string() == **text)).or_else(error),
        ("ip", [Value::Opaque(cidr)]) => match &**cidr {
            Opaque::Cidr(net) => Ok(opaque(Opaque::Ip(net.addr()))),
            _ => no_overload(),
        },
        (name, [Value::Opaque(held)]) => match &**held {
            Opaque::Ip(ip) => ip_fact(name, ip),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn ip_fact<'a>(name: &str, ip: &IpAddr) -> Result<Value<'a>> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    Ok(Value::Bool(match name {
        "family" => return Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => ip.is_unspecified(),
        "isLoopback" => ip.is_loopback(),
        "isLinkLocalMulticast" => match ip {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
        },
        "isLinkLocalUnicast" => link_local,
        "isGlobalUnicast" => !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local || broadcast),
        _ => return no_overload(),
    }))
}

pub fn cidr<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("cidr", [Value::String(text)]) => parse_cidr(text).map(|net| opaque(Opaque::Cidr(net))).or_else(error),
        ("isCIDR", [Value::String(text)]) => Ok(Value::Bool(parse_cidr(text).is_ok())),
        (name, [Value::Opaque(net), rest @ ..]) => {
            let Opaque::Cidr(net) = &**net else { return no_overload() };
            let inner = match rest {
                [] => None,
                [Value::String(text)] if name == "containsIP" => Some(Opaque::Ip(parse_ip(text).or_else(error)?)),
                [Value::String(text)] => Some(Opaque::Cidr(parse_cidr(text).or_else(error)?)),
                [Value::Opaque(other)] => Some((**other).clone()),
                _ => return no_overload(),
            };
            match (name, inner) {
                ("prefixLength", None) => Ok(Value::Int(i64::from(net.prefix_len()))),
                ("masked", None) => Ok(opaque(Opaque::Cidr(net.trunc()))),
                ("containsIP", Some(Opaque::Ip(ip))) => Ok(Value::Bool(net.contains(&ip))),
                ("containsCIDR", Some(Opaque::Cidr(other))) => Ok(Value::Bool(net.contains(&other))),
                _ => no_overload(),
            }
        }
        _ => no_overload(),
    }
}

pub fn url<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("url", [Value::String(text)]) => match urls::parse(text) {
            Ok(url) => Ok(opaque(Opaque::Url(url))),
            Err(reason) => error(format!("URL parse error during conversion from string: {reason}")),
        },
        ("isURL", [Value::String(text)]) => Ok(Value::Bool(urls::parse(text).is_ok())),
        (name, [Value::Opaque(held)]) => {
            let Opaque::Url(url) = &**held else { return no_overload() };
            Ok(match name {
                "getScheme" => Value::string(url.scheme.as_str()),
                "getHost" => Value::string(url.host.as_str()),
                "getHostname" => Value::string(url.hostname()),
                "getPort" => Value::string(url.port()),
                "getEscapedPath" => Value::string(url.escaped_path()),
                _ => {
                    let entries = url
                        .query_values()
                        .into_iter()
                        .map(|(key, values)| (Value::string(key), Value::list(values.into_iter().map(Value::string).collect())));
                    Value::map(entries)
                }
            })
        }
        _ => no_overload(),
    }
}

pub fn quantity<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    if let [Value::String(text)] = args {
        return match (name, Quantity::parse(text)) {
            ("isQuantity", parsed) => Ok(Value::Bool(parsed.is_ok())),
            (_, Ok(quantity)) => Ok(opaque(Opaque::Quantity(quantity))),
            (_, Err(reason)) => error(reason.to_string()),
        };
    }
    let held = opaques(args);
    let Some(Opaque::Quantity(a)) = held.first() else { return no_overload() };
    let whole = Quantity::from_units(a.value()) == *a;
    let other = match args.get(1) {
        Some(Value::Int(units)) => Some(Quantity::from_units(*units)),
        Some(Value::Opaque(other)) => match &**other {
            Opaque::Quantity(other) => Some(*other),
            _ => return no_overload(),
        },
        _ => None,
    };
    Ok(match (name, other) {
        ("sign", None) => Value::Int(a.cmp(&Quantity::ZERO) as i64),
        ("isInteger", None) => Value::Bool(whole),
        ("asInteger", None) if whole => Value::Int(a.value()),
        ("asInteger", None) => return error("cannot convert value to integer"),
        ("asApproximateFloat", None) => Value::Double(a.as_f64()),
        ("add", Some(b)) => opaque(Opaque::Quantity(*a + b)),
        ("sub", Some(b)) => opaque(Opaque::Quantity(*a - b)),
        _ => return no_overload(),
    })
}

fn parse_version(text: &str, normalize: bool) -> std::result::Result<Version, String> {
    if text.is_empty() {
        return Err("Version string empty".into());
    }
    if !normalize {
        return Version::parse(text).map_err(|reason| reason.to_string());
    }
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, tail) = text.split_at(end);
    let mut parts: Vec<&str> = numbers.split('.').collect();
    if parts.len() > 3 {
        return Err("No Major.Minor.Patch elements found".into());
    }
    if parts.len() < 3 && !tail.is_empty() {
        return Err("Short version cannot contain PreRelease/Build meta data".into());
    }
    parts.resize(3, "0");
    let stripped = parts.iter().map(|part| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0",
        rest => rest,
    });
    let text = format!("{}{tail}", stripped.collect::<Vec<_>>().join("."));
    Version::parse(&text).map_err(|reason| reason.to_string())
}

pub fn version<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, normalize) = match args {
        [Value::String(text)] => (text, false),
        [Value::String(text), Value::Bool(normalize)] => (text, *normalize),
        [Value::Opaque(held)] => {
            let Opaque::Semver(version) = &**held else { return no_overload() };
            let part = match name {
                "major" => version.major,
                "minor" => version.minor,
                _ => version.patch,
            };
            return Ok(Value::Int(i64::try_from(part).unwrap_or(i64::MAX)));
        }
        _ => return no_overload(),
    };
    match (name, parse_version(text, normalize)) {
        ("isSemver", parsed) => Ok(Value::Bool(parsed.is_ok())),
        (_, Ok(version)) => Ok(opaque(Opaque::Semver(version))),
        (_, Err(reason)) => error(reason),
    }
}

/// `isGreaterThan`, `isLessThan` and `compareTo` of quantities and of versions.
pub fn compared<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let order = match opaques(args)[..] {
        [Opaque::Quantity(a), Opaque::Quantity(b)] => a.cmp(b),
        [Opaque::Semver(a), Opaque::Semver(b)] => a.cmp_precedence(b),
        _ => return no_overload(),
    };
    Ok(match name {
        "isGreaterThan" => Value::Bool(order.is_gt()),
        "isLessThan" => Value::Bool(order.is_lt()),
        _ => Value::Int(order as i64),
    })
}

/// `format.named('x')`, `format.x()` and `validate`.
pub fn format<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("format.named", [Value::String(wanted)]) => {
            let found = Format::named(wanted);
            Ok(Value::optional(found.map(|format| opaque(Opaque::Format(format)))))
        }
        ("validate", [Value::Opaque(held), Value::String(text)]) => {
            let Opaque::Format(format) = &**held else { return no_overload() };
            let problems = (format.check)(text);
            let found = (!problems.is_empty()).then(|| problems.into_iter().map(Value::string).collect());
            Ok(Value::optional(found.map(Value::list)))
        }
        (name, []) => match name.strip_prefix("format.").and_then(Format::named) {
            Some(format) => Ok(opaque(Opaque::Format(format))),
            None => no_overload(),
        },
        _ => no_overload(),
    }
}
