//! Which code carries out which function.

use crate::value::{Result, Value};
use crate::{authz, convert, kube, lists, operators, regexes, strings, time};

pub type Function = for<'a> fn(&str, &[Value<'a>]) -> Result<Value<'a>>;

/// The code of a function; none for those that the evaluation itself carries out.
pub fn lookup(name: &str) -> Option<Function> {
    let function: Function = match name {
        "!_" => |_, args| operators::not(args),
        "-_" => |_, args| operators::negate(args),
        "_-_" => |_, args| operators::subtract(args),
        "_*_" => |_, args| operators::multiply(args),
        "_/_" => |_, args| operators::divide(args),
        "_%_" => |_, args| operators::modulo(args),
        "_<_" => |_, args| operators::less(args),
        "_<=_" => |_, args| operators::less_equals(args),
        "_>_" => |_, args| operators::greater(args),
        "_>=_" => |_, args| operators::greater_equals(args),
        "_==_" => |_, args| operators::equals(args),
        "_!=_" => |_, args| operators::not_equals(args),
        "@in" => |_, args| operators::contained(args),
        "size" => |_, args| operators::size(args),
        "type" => |_, args| convert::type_of(args),
        "bool" => |_, args| convert::to_bool(args),
        "bytes" => |_, args| convert::to_bytes(args),
        "double" => |_, args| convert::to_double(args),
        "duration" => |_, args| convert::to_duration(args),
        "dyn" => |_, args| convert::to_dyn(args),
        "int" => |_, args| convert::to_int(args),
        "string" => |_, args| convert::to_string(args),
        "timestamp" => |_, args| convert::to_timestamp(args),
        "uint" => |_, args| convert::to_uint(args),
        _ => return library(name),
    };
    Some(function)
}

/// Functions with a name of their own.
fn library(name: &str) -> Option<Function> {
    let function: Function = match name {
        "contains" => |_, args| strings::contains(args),
        "endsWith" => |_, args| strings::ends_with(args),
        "startsWith" => |_, args| strings::starts_with(args),
        "matches" => |_, args| regexes::matches(args),
        "getFullYear" | "getMonth" | "getDayOfYear" | "getDayOfMonth" | "getDate" | "getDayOfWeek" | "getHours" | "getMinutes" | "getSeconds"
        | "getMilliseconds" => time::part,
        "optional.of"
        | "optional.ofNonZeroValue"
        | "optional.none"
        | "value"
        | "hasValue"
        | "or"
        | "orValue"
        | "first"
        | "last"
        | "optional.unwrap"
        | "unwrapOpt" => convert::optional,
        "charAt" => |_, args| strings::char_at(args),
        "indexOf" => |_, args| strings::index_of(args),
        "lastIndexOf" => |_, args| strings::last_index_of(args),
        "lowerAscii" => |_, args| strings::lower(args),
        "upperAscii" => |_, args| strings::upper(args),
        "replace" => |_, args| strings::replace(args),
        "split" => |_, args| strings::split(args),
        "substring" => |_, args| strings::substring(args),
        "trim" => |_, args| strings::trim(args),
        "format" => |_, args| strings::format(args),
        "strings.quote" => |_, args| strings::quote(args),
        "join" => |_, args| strings::join(args),
        "jsonpatch.escapeKey" => |_, args| strings::escape_key(args),
        "slice" => |_, args| lists::slice(args),
        "flatten" => |_, args| lists::flatten(args),
        "lists.range" => |_, args| lists::range(args),
        "reverse" => |_, args| lists::reverse(args),
        "distinct" => |_, args| lists::distinct(args),
        "sort" | "@sortByAssociatedKeys" => |_, args| lists::sort(args),
        "sets.contains" | "sets.equivalent" | "sets.intersects" => lists::sets,
        "isSorted" => |_, args| lists::is_sorted(args),
        "min" | "max" => lists::extreme,
        "find" => |_, args| regexes::find(args),
        "findAll" => |_, args| regexes::find_all(args),
        "url" | "isURL" | "getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath" | "getQuery" => kube::url,
        "ip"
        | "isIP"
        | "ip.isCanonical"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast" => kube::ip,
        "cidr" | "isCIDR" | "containsIP" | "containsCIDR" | "prefixLength" | "masked" => kube::cidr,
        "quantity" | "isQuantity" | "sign" | "asApproximateFloat" | "asInteger" | "isInteger" | "add" | "sub" => kube::quantity,
        "semver" | "isSemver" | "major" | "minor" | "patch" => kube::version,
        "isGreaterThan" | "isLessThan" | "compareTo" => kube::compared,
        "validate" => kube::format,
        name if name.starts_with("format.") => kube::format,
        "path" | "group" | "serviceAccount" | "resource" | "subresource" | "namespace" | "name" | "fieldSelector" | "labelSelector" | "check"
        | "allowed" | "errored" | "error" | "reason" => authz::call,
        _ => return None,
    };
    Some(function)
}

/// Functions that the evaluation carries out itself.
#[cfg(test)]
pub const BUILT_IN: &[&str] = &["_?_:_", "_&&_", "_||_", "@not_strictly_false", "_[_]", "_[?_]", "_+_", "cel.@mapInsert", "sum"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declarations::FUNCTIONS;

    #[test]
    fn every_declared_function_has_code() {
        for name in FUNCTIONS.keys() {
            assert!(lookup(name).is_some() != BUILT_IN.contains(name), "{name}");
        }
    }
}
