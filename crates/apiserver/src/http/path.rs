//! What a request asks for, read from its method, path and query
//! (apiserver/pkg/endpoints/request/requestinfo.go).

use super::query::Query;
use http::Method;

/// Upstream's `RequestInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the lower-case method for other paths.
    pub verb: &'static str,
    /// Below `/api` or `/apis` with a resource.
    pub is_resource: bool,
    /// API group ("" for the legacy one).
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// `status`, `log`, …
    pub subresource: String,
    /// What follows the subresource (`proxy` only).
    pub rest: String,
    /// Namespace, "" for cluster scope or all namespaces.
    pub namespace: String,
    /// Object name.
    pub name: String,
    /// The whole path.
    pub path: String,
}

impl RequestInfo {
    /// Reads a request line.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { verb: method_verb(method), path: path.to_string(), ..Self::default() };
        let decoded: Vec<String> = path.trim_matches('/').split('/').map(super::query::decode).collect();
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let rest = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = (*version).to_string();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                (info.group, info.version) = ((*group).to_string(), (*version).to_string());
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        info.locate(rest);
        info.verb = info.resource_verb(method, query);
        if matches!(info.verb, "list" | "watch" | "deletecollection") && info.name.is_empty() {
            info.name = single_name(&query.text("fieldSelector")).unwrap_or_default();
        }
        info
    }

    fn locate(&mut self, parts: &[&str]) {
        let rest = match parts {
            ["namespaces", namespace, rest @ ..] => {
                self.namespace = (*namespace).to_string();
                // /namespaces/NAME and its subresources are the Namespace itself.
                if rest.is_empty() || matches!(rest, ["status" | "finalize"]) { parts } else { rest }
            }
            other => other,
        };
        let mut rest = rest.iter();
        self.resource = rest.next().map(ToString::to_string).unwrap_or_default();
        self.name = rest.next().map(ToString::to_string).unwrap_or_default();
        self.subresource = rest.next().map(ToString::to_string).unwrap_or_default();
        self.rest = rest.copied().collect::<Vec<_>>().join("/");
    }

    fn resource_verb(&self, method: &Method, query: &Query) -> &'static str {
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if self.name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if query.flag("watch") && self.subresource.is_empty() => "watch",
            Method::GET | Method::HEAD if self.name.is_empty() => "list",
            Method::GET | Method::HEAD => "get",
            _ => "",
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

/// The name that `fieldSelector=metadata.name=NAME` asks for: authorization treats such a list as one for that object.
fn single_name(selector: &str) -> Option<String> {
    let name = selector.split(',').find_map(|term| term.strip_prefix("metadata.name="))?;
    Some(name.trim_start_matches('=').to_string()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, target: &str) -> RequestInfo {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query))
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
}
