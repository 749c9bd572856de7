//! What a request asks for, read from its method, path and query
//! (apiserver/pkg/endpoints/request/requestinfo.go).

use super::query::Query;
use crate::authn::UserInfo;
use crate::authz::Attributes;
use crate::kind::{Kind, Set};
use crate::selectors::FieldSelector;
use http::Method;
use std::sync::Arc;

/// Upstream's `RequestInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the lower-case method for other paths.
    pub verb: &'static str,
    /// Below `/api` or `/apis` with a resource.
    pub is_resource: bool,
    /// API group ("" for the legacy one).
    pub group: String,
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// `status`, `log`, …
    pub subresource: String,
    /// What follows the subresource (`proxy` only).
    pub rest: String,
    /// Namespace, "" for cluster scope or all namespaces.
    pub namespace: String,
    /// Object name; for a list or watch the name that its field selector asks for.
    pub name: String,
    pub path: String,
}

/// The path has a shape that names nothing this server can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownShape;

impl RequestInfo {
    /// Reads a request line.
    ///
    /// Every segment of an accepted path is in the result, and nothing else is: what is authorized is what is acted on. A path with an
    /// empty or an ambiguous segment, with a kind in the wrong scope or with segments that would be ignored is an [`UnknownShape`].
    pub fn parse(method: &Method, path: &str, query: &Query, kinds: &Set) -> Result<Self, UnknownShape> {
        let mut info = Self { verb: method_verb(method), path: path.to_string(), ..Self::default() };
        let raw = path.strip_prefix('/').ok_or(UnknownShape)?;
        let raw: Vec<&str> = raw.strip_suffix('/').unwrap_or(raw).split('/').collect();
        let (first, rest) = match raw.as_slice() {
            ["api", _, rest @ ..] if !rest.is_empty() => (&raw[1..2], rest),
            ["apis", _, _, rest @ ..] if !rest.is_empty() => (&raw[1..3], rest),
            // One segment may be empty: that of "/".
            segments if segments == [""] || segments.iter().all(|segment| is_segment(segment)) => return Ok(info),
            _ => return Err(UnknownShape),
        };
        info.is_resource = true;
        let mut first = first.iter().rev();
        info.version = next(&mut first)?.ok_or(UnknownShape)?;
        info.group = next(&mut first)?.unwrap_or_default();
        let watches = decode(rest[0])? == "watch";
        info.locate(if watches { &rest[1..] } else { rest })?;
        info.check_scope(kinds)?;
        info.verb = info.resource_verb(method, query);
        if watches {
            if !matches!(*method, Method::GET | Method::HEAD) || !info.subresource.is_empty() {
                return Err(UnknownShape);
            }
            info.verb = "watch";
        }
        if matches!(info.verb, "list" | "watch") && info.name.is_empty() {
            let selector = FieldSelector::terms(query.get("fieldSelector").unwrap_or_default()).unwrap_or_default();
            info.name = selector.required("metadata.name").filter(|name| is_name(name)).unwrap_or_default().to_string();
        }
        Ok(info)
    }

    /// Of a path that names nothing: method and path.
    pub fn of_path(method: &Method, path: &str) -> Self {
        Self { verb: method_verb(method), path: path.to_string(), ..Self::default() }
    }

    fn locate(&mut self, parts: &[&str]) -> Result<(), UnknownShape> {
        let first = parts.first().ok_or(UnknownShape)?;
        let below = if parts.len() > 1 && decode(first)? == "namespaces" {
            self.namespace = decode(parts[1])?;
            // /namespaces/NAME and its subresources are the Namespace itself.
            match parts.get(2).map(|below| decode(below)).transpose()?.as_deref() {
                None | Some("status" | "finalize") => parts,
                Some("namespaces") => return Err(UnknownShape),
                Some(_) => &parts[2..],
            }
        } else {
            parts
        };
        let mut below = below.iter();
        self.resource = next(&mut below)?.ok_or(UnknownShape)?;
        self.name = next(&mut below)?.unwrap_or_default();
        self.subresource = next(&mut below)?.unwrap_or_default();
        let rest: Vec<&str> = below.copied().collect();
        self.rest = rest.join("/");
        if !rest.is_empty() && self.subresource != "proxy" { Err(UnknownShape) } else { Ok(()) }
    }

    /// The kind that is served here, stored or computed.
    pub fn kind<'a>(&self, kinds: &'a Set) -> Option<&'a Arc<Kind>> {
        if self.is_resource { kinds.find(&self.group, &self.version, &self.resource) } else { None }
    }

    /// Only a namespaced kind lies below a namespace, and its objects lie nowhere else: whoever may do something to everything in a
    /// namespace may do nothing to nodes or to another Namespace.
    fn check_scope(&self, kinds: &Set) -> Result<(), UnknownShape> {
        let Some(kind) = self.kind(kinds) else { return Ok(()) };
        let itself = kind.is("", "namespaces");
        let fits = if kind.namespaced { !self.namespace.is_empty() || self.name.is_empty() } else { self.namespace.is_empty() || itself };
        if fits { Ok(()) } else { Err(UnknownShape) }
    }

    fn resource_verb(&self, method: &Method, query: &Query) -> &'static str {
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if self.name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if !self.name.is_empty() => "get",
            Method::GET | Method::HEAD if query.flag("watch") => "watch",
            Method::GET | Method::HEAD => "list",
            _ => "",
        }
    }
}

impl Attributes {
    /// What a request asks.
    pub fn of(user: &UserInfo, info: &RequestInfo, field_selector: &str) -> Self {
        Self {
            user: user.clone(),
            verb: info.verb.to_string(),
            is_resource: info.is_resource,
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
            field_selector: field_selector.to_string(),
        }
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

fn next<'a>(segments: &mut impl Iterator<Item = &'a &'a str>) -> Result<Option<String>, UnknownShape> {
    segments.next().map(|segment| decode(segment)).transpose()
}

/// A segment without its percent-encoding.
fn decode(segment: &str) -> Result<String, UnknownShape> {
    let decoded = percent_encoding::percent_decode_str(segment).decode_utf8().map_err(|_| UnknownShape)?;
    if is_name(&decoded) { Ok(decoded.into_owned()) } else { Err(UnknownShape) }
}

/// Upstream's `IsValidPathSegmentName`: what two readers of a path could take for different things is no name.
fn is_name(text: &str) -> bool {
    is_segment(text) && !text.contains(['/', '%']) && !text.contains(char::is_control)
}

fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;
    use proptest::prelude::*;

    fn parse(method: &str, target: &str) -> RequestInfo {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query), builtin()).unwrap_or_else(|_| panic!("{method} {target}"))
    }

    fn refused(target: &str) -> bool {
        RequestInfo::parse(&Method::GET, target, &Query::default(), builtin()).is_err()
    }

    #[test]
    fn paths_become_verbs_and_resources() {
        let cases = [
            ("GET", "/api/v1/namespaces", "list", "", "namespaces", "", ""),
            ("GET", "/api/v1/namespaces/a", "get", "a", "namespaces", "a", ""),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "a", "namespaces", "a", "finalize"),
            ("GET", "/api/v1/namespaces/a/pods", "list", "a", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods?watch=true", "watch", "a", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "get", "a", "pods", "b", "log"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list", "", "pods", "x", ""),
            ("GET", "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%21%3Da,metadata.name%3D%3Dx", "watch", "", "pods", "x", ""),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%21%3Dx", "list", "", "pods", "", ""),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx/y", "list", "", "pods", "", ""),
            ("DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "deletecollection", "a", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods/b?watch=1", "get", "a", "pods", "b", ""),
            ("GET", "/api/v1/watch/namespaces/a/pods/b", "watch", "a", "pods", "b", ""),
            ("GET", "/api/v1/watch/pods", "watch", "", "pods", "", ""),
            ("GET", "/api/v1/watch/namespaces/a", "watch", "a", "namespaces", "a", ""),
            ("POST", "/apis/apps/v1/namespaces/a/deployments", "create", "a", "deployments", "", ""),
            ("PATCH", "/apis/apps/v1/namespaces/a/deployments/d/scale", "patch", "a", "deployments", "d", "scale"),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection", "a", "deployments", "", ""),
            ("DELETE", "/api/v1/nodes/n", "delete", "", "nodes", "n", ""),
        ];
        for (method, target, verb, namespace, resource, name, subresource) in cases {
            let info = parse(method, target);
            assert!(info.is_resource, "{target}");
            let found = (info.verb, &*info.namespace, &*info.resource, &*info.name, &*info.subresource);
            assert_eq!(found, (verb, namespace, resource, name, subresource), "{method} {target}");
        }
    }

    #[test]
    fn other_paths_are_not_resources() {
        for target in ["/healthz", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v3/api/v1", "/"] {
            assert!(!parse("GET", target).is_resource, "{target}");
        }
        assert_eq!(parse("GET", "/version").verb, "get");
    }

    #[test]
    fn paths_that_mean_two_things_mean_nothing() {
        for target in [
            "/api/v1/namespaces/a/namespaces/b",
            "/api/v1/namespaces/a/namespaces",
            "/api/v1/namespaces/a/namespaces/b/status",
            "/api/v1/namespaces/a/nodes/n",
            "/api/v1/namespaces/a/status/x",
            "/api/v1/namespaces//secrets",
            "/api/v1//pods",
            "/api/v1/pods/p",
            "/api/v1/namespaces/a/pods/p/status/more",
            "/api/v1/namespaces/a/pods/b%2Fc",
            "/api/v1/namespaces/a/pods/%2e%2e",
            "/api/v1/namespaces/a/pods/%25",
            "/api/v1/namespaces/a/pods/%ff",
            "/api/v1/namespaces/a/pods//log",
            "/api/v1/watch",
            "/api/v1/watch/namespaces/a/pods/b/log",
            "/apis/metrics.k8s.io/v1beta1/namespaces/a/nodes",
            "/apis/authorization.k8s.io/v1/namespaces/a/subjectaccessreviews",
            "//healthz",
            "/healthz//ping",
            "/api/../version",
            "api/v1",
            "*",
        ] {
            assert!(refused(target), "{target}");
        }
        assert!(RequestInfo::parse(&Method::POST, "/api/v1/watch/pods", &Query::default(), builtin()).is_err());
    }

    fn segments() -> impl Strategy<Value = Vec<String>> {
        let word = prop::sample::select(vec![
            "api",
            "apis",
            "v1",
            "apps",
            "namespaces",
            "a",
            "b",
            "pods",
            "secrets",
            "nodes",
            "deployments",
            "status",
            "finalize",
            "proxy",
            "log",
            "watch",
            "",
            ".",
            "..",
            "%61",
            "%6eamespaces",
            "%2F",
            "b%2Fc",
            "healthz",
        ]);
        let begin = prop::sample::select(vec![vec![], vec!["api", "v1"], vec!["apis", "apps", "v1"], vec!["api", "v1", "namespaces", "a"]]);
        (begin, prop::collection::vec(word, 0..6)).prop_map(|(begin, more)| begin.into_iter().chain(more).map(str::to_string).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// The attributes that are authorized say the whole path: nothing in it is ignored, and nothing is read twice. A Namespace alone
        /// carries its own name as its namespace, as upstream's attributes do.
        #[test]
        fn what_is_authorized_is_all_that_was_asked(segments in segments(), method in prop::sample::select(vec!["GET", "POST", "PUT", "DELETE"])) {
            let path = format!("/{}", segments.join("/"));
            if let Ok(info) = RequestInfo::parse(&method.parse().unwrap(), &path, &Query::default(), builtin()) && info.is_resource {
                let mut said = if info.group.is_empty() { vec!["api"] } else { vec!["apis", &info.group] };
                said.push(&info.version);
                if segments[said.len()] == "watch" {
                    prop_assert_eq!(info.verb, "watch");
                    said.push("watch");
                }
                let itself = info.resource == "namespaces";
                prop_assert!(!itself || info.namespace == info.name);
                if !info.namespace.is_empty() && !itself {
                    said.extend(["namespaces", &info.namespace]);
                }
                said.extend([&*info.resource, &info.name, &info.subresource, &info.rest].into_iter().filter(|part| !part.is_empty()));
                let plain = |path: &str| path.trim_end_matches('/').replace("%61", "a").replace("%6e", "n");
                prop_assert_eq!(plain(&format!("/{}", said.join("/"))), plain(&path));
                if let Some(kind) = info.kind(builtin()) {
                    prop_assert!(kind.namespaced || itself || info.namespace.is_empty());
                    prop_assert!(!kind.namespaced || info.name.is_empty() || !info.namespace.is_empty());
                }
            }
        }
    }
}
