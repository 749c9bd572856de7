//! The audit policy, `audit.k8s.io/v1` Policy: which requests are logged, at which level, at which stages
//! (apiserver/pkg/audit/policy, apiserver/pkg/apis/audit/validation).

mod read;
#[cfg(test)]
mod tests;

pub use read::PolicyError;

use serde::{Deserialize, Serialize};

/// How much of a request is logged. Each level has what the levels before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Nothing.
    None,
    /// Who asked for what and when, without bodies.
    Metadata,
    /// The request's body.
    Request,
    /// The response's body.
    RequestResponse,
}

/// When an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Stage {
    /// Before the request is handled.
    RequestReceived,
    /// The head of the response is there, of requests that last, such as watches.
    ResponseStarted,
    /// The response is there as a whole.
    ResponseComplete,
    /// Handling the request has panicked.
    Panic,
}

/// A policy that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// What a policy is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Name and groups; none of requests that are not authenticated.
    pub user: Option<(&'a str, &'a [String])>,
    pub verb: &'a str,
    /// Whether a resource is meant, or a path.
    pub is_resource: bool,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
}

/// What a policy says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Reads and checks a policy in YAML or JSON. The second part names members that are not known; they have no effect.
    pub fn read(text: &str) -> Result<(Self, Vec<String>), PolicyError> {
        read::read(text)
    }

    /// What the first rule that matches says; without one nothing is logged.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        match self.rules.iter().find(|rule| rule.matches(request)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_stages: self.omit_stages.iter().chain(&rule.omit_stages).copied().collect(),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Decision { level: Level::None, omit_stages: self.omit_stages.clone(), omit_managed_fields: self.omit_managed_fields },
        }
    }
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|one| one == text)
}

impl Rule {
    fn matches(&self, request: &Attributes<'_>) -> bool {
        let is_user = |(name, _): (&str, _)| has(&self.users, name);
        let in_group = |(_, groups): (_, &[String])| groups.iter().any(|group| has(&self.user_groups, group));
        if (!self.users.is_empty() && !request.user.is_some_and(is_user))
            || (!self.user_groups.is_empty() && !request.user.is_some_and(in_group))
            || (!self.verbs.is_empty() && !has(&self.verbs, request.verb))
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.matches_resource(request);
        }
        self.non_resource_urls.is_empty() || (!request.is_resource && self.non_resource_urls.iter().any(|url| matches_path(url, request.path)))
    }

    fn matches_resource(&self, request: &Attributes<'_>) -> bool {
        request.is_resource
            && (self.namespaces.is_empty() || has(&self.namespaces, request.namespace))
            && (self.resources.is_empty() || self.resources.iter().any(|group| group.matches(request)))
    }
}

impl GroupResources {
    fn matches(&self, request: &Attributes<'_>) -> bool {
        if self.group != request.group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        (self.resource_names.is_empty() || has(&self.resource_names, request.name)) && self.resources.iter().any(|one| matches_one(one, request))
    }
}

/// `*`, `pods`, `pods/log`, `*/scale`, or `pods/*`, which takes the pods themselves too.
fn matches_one(wanted: &str, request: &Attributes<'_>) -> bool {
    let whole = match wanted.split_once('/') {
        None => wanted == request.resource && request.subresource.is_empty(),
        Some((resource, subresource)) => resource == request.resource && subresource == request.subresource && !subresource.is_empty(),
    };
    let of_any = !request.subresource.is_empty() && wanted.strip_prefix("*/") == Some(request.subresource);
    whole || wanted == "*" || of_any || wanted.strip_suffix("/*") == Some(request.resource)
}

fn matches_path(url: &str, path: &str) -> bool {
    url == "*" || url == path || url.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
}
