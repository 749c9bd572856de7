//! get and list: resourceVersion semantics, chunks, selectors
//! (apiserver/pkg/storage/etcd3/store.go, apiserver/pkg/storage/cacher).

use super::Registry;
use crate::http::query::Query;
use crate::kind::Kind;
use crate::selectors::{FieldSelector, LabelSelector, Outline};
use crate::status::ApiError;
use crate::store::{Entry, Rows, Topic};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Objects of several versions that are brought into the request's at once.
const CHUNK: usize = 500;

/// The label and field selector of a list, watch or deletecollection.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`.
    pub fn parse(kind: &Kind, query: &Query) -> Result<Self, ApiError> {
        Ok(Self {
            labels: LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse(query.get("fieldSelector").unwrap_or_default(), &kind.selectable_fields)?,
        })
    }

    /// The same, of the one object that a path names.
    pub fn named(self, name: &str) -> Result<Self, ApiError> {
        Ok(Self { fields: self.fields.named(name)?, labels: self.labels })
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object matches.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }

    /// Whether an object of this outline matches.
    pub fn matches_outline(&self, outline: &Outline) -> bool {
        outline.matches(&self.labels, &self.fields)
    }

    /// Whether an encoded object matches; it is decoded only when something is selected.
    pub fn matches_bytes(&self, bytes: &[u8]) -> bool {
        self.is_empty() || serde_json::from_slice(bytes).is_ok_and(|object| self.matches(&object))
    }

    /// What of a kind in a namespace ("" for all) can match.
    pub fn topic(&self, kind: &Kind, namespace: &str) -> Topic {
        let prefix = kind.prefix(namespace);
        match (self.name(), self.fields.required("spec.nodeName")) {
            (Some(name), _) if !namespace.is_empty() || !kind.namespaced => Topic::Object(kind.key(namespace, name).into()),
            (_, Some(node)) if prefix.starts_with("core/pods/") && !node.is_empty() => Topic::PodsOf(node.into()),
            _ => Topic::resource(&prefix),
        }
    }

    /// The one name that can match, when the field selector says so.
    pub fn name(&self) -> Option<&str> {
        self.fields.required("metadata.name")
    }
}

pub struct Page {
    /// metadata.resourceVersion of the list.
    pub revision: u64,
    pub entries: Vec<Entry>,
    /// metadata.continue, "" for the last page.
    pub next: String,
    /// metadata.remainingItemCount, when it is known.
    pub remaining: Option<usize>,
}

impl Page {
    /// metadata of the list.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if !self.next.is_empty() {
            metadata["continue"] = self.next.as_str().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// Which state a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Latest,
    Exact(u64),
}

struct Continue {
    revision: Option<u64>,
    start: String,
}

impl Registry {
    /// One object. A `resourceVersion` that has not come yet is a time-out, any other is answered with the latest state.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Entry, ApiError> {
        self.store.get(&kind.key(namespace, name)).ok_or_else(|| ApiError::not_found(kind, name))
    }

    /// The object itself, in the version of the kind.
    pub async fn object(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Value, ApiError> {
        self.read_one(kind, self.get(kind, namespace, name)?.value()).await
    }

    /// One object as it is sent to clients of the kind.
    pub async fn entry(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Entry, ApiError> {
        let entry = self.get(kind, namespace, name)?;
        let shown = self.shown(kind, vec![entry]).await?;
        shown.into_iter().next().ok_or_else(|| ApiError::not_found(kind, name))
    }

    pub async fn list(&self, kind: &Kind, namespace: &str, selection: &Selection, query: &Query) -> Result<Page, ApiError> {
        // Upstream reads every option before it answers.
        query.integer("timeoutSeconds")?;
        let limit = query.integer("limit")?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        let resume = query.get("continue").filter(|token| !token.is_empty()).map(decode_continue).transpose()?;
        let at = self.position(kind, query, limit.is_some(), resume.as_ref())?;
        let (revision, rows) = match selection.name().filter(|_| at == At::Latest && (!namespace.is_empty() || !kind.namespaced)) {
            Some(name) => self.row(&kind.key(namespace, name)),
            None => self.rows((kind, namespace), &selection.topic(kind, namespace), at, resume.as_ref())?,
        };
        let start = resume.map(|resume| resume.start).unwrap_or_default();
        let mut rows = rows.into_iter().filter(|(key, _)| **key >= *start);
        let mut page = Page { revision, entries: Vec::new(), next: String::new(), remaining: None };
        let chunk = if kind.versions().is_some() { limit.map_or(CHUNK, |limit| limit.min(CHUNK)) } else { usize::MAX };
        loop {
            let (keys, entries): (Vec<_>, Vec<_>) = rows.by_ref().take(chunk).unzip();
            if keys.is_empty() {
                return Ok(page);
            }
            let mut shown = keys.into_iter().zip(self.shown(kind, entries).await?);
            while let Some((key, entry)) = shown.next() {
                if !selection.matches_bytes(&entry.bytes) {
                    continue;
                }
                page.entries.push(entry);
                if limit.is_some_and(|limit| page.entries.len() == limit) {
                    let left = shown.count() + rows.count();
                    if left > 0 {
                        page.next = encode_continue(revision, &key);
                        page.remaining = selection.is_empty().then_some(left);
                    }
                    return Ok(page);
                }
            }
        }
    }

    /// The one object that a list by name can show.
    fn row(&self, key: &str) -> (u64, Rows) {
        let revision = self.store.revision();
        (revision, self.store.get(key).map(|entry| (key.into(), entry)).into_iter().collect())
    }

    fn rows(&self, (kind, namespace): (&Kind, &str), topic: &Topic, at: At, resume: Option<&Continue>) -> Result<(u64, Rows), ApiError> {
        let prefix = kind.prefix(namespace);
        match at {
            At::Latest => Ok(self.store.list_of(topic, &prefix)),
            At::Exact(revision) => match self.store.list_at(&prefix, revision) {
                Ok(rows) => Ok((revision, rows)),
                Err(compacted) => Err(match resume {
                    Some(resume) => ApiError::expired_page(&encode_token(-1, &resume.start)),
                    None => ApiError::expired(format!("The resourceVersion for the provided list is too old: {revision} ({})", compacted.oldest)),
                }),
            },
        }
    }

    fn position(&self, kind: &Kind, query: &Query, limited: bool, resume: Option<&Continue>) -> Result<At, ApiError> {
        let (asked, how) = (query.get("resourceVersion").unwrap_or_default(), query.get("resourceVersionMatch").unwrap_or_default());
        if let Some(resume) = resume {
            if !matches!(asked, "" | "0") {
                return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
            }
            return Ok(resume.revision.map_or(At::Latest, At::Exact));
        }
        check_match(kind, asked, how)?;
        let Some(revision) = parse_revision(asked)? else { return Ok(At::Latest) };
        let current = self.store.revision();
        if revision > current {
            return Err(ApiError::too_large(revision, current));
        }
        let exact = how == "Exact" || how.is_empty() && limited && revision > 0;
        Ok(if exact { At::Exact(revision) } else { At::Latest })
    }
}

/// A resourceVersion parameter; "" is `None`.
pub fn parse_revision(text: &str) -> Result<Option<u64>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"));
    text.parse().map(Some).map_err(wrong)
}

/// apimachinery/pkg/apis/meta/internalversion/validation.
fn check_match(kind: &Kind, asked: &str, how: &str) -> Result<(), ApiError> {
    let refuse = |text: String| Err(ApiError::new(422, "Invalid", format!("ListOptions.meta.k8s.io {:?} is invalid: {text}", kind.plural)));
    match (asked, how) {
        (_, "") | (_, "NotOlderThan" | "Exact") if how.is_empty() || !asked.is_empty() => {
            if asked == "0" && how == "Exact" {
                return refuse("resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"".into());
            }
            Ok(())
        }
        ("", _) => refuse("resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided".into()),
        _ => refuse(format!("resourceVersionMatch: Unsupported value: {how:?}: supported values: \"Exact\", \"NotOlderThan\"")),
    }
}

fn encode_continue(revision: u64, last: &str) -> String {
    encode_token(i64::try_from(revision).unwrap_or(i64::MAX), &format!("{last}\0"))
}

/// A revision of -1 is the latest: the list goes on without being consistent with its beginning.
fn encode_token(revision: i64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn decode_continue(token: &str) -> Result<Continue, ApiError> {
    let wrong = |why: &str| ApiError::bad_request(format!("continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| wrong(&error.to_string()))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(&error.to_string()))?;
    let start = value.get("start").and_then(Value::as_str).filter(|start| !start.is_empty());
    let start = start.ok_or_else(|| wrong("encoded start key is empty"))?;
    let revision = value.get("rv").and_then(Value::as_u64).filter(|revision| *revision > 0);
    Ok(Continue { revision, start: start.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_round_trip() {
        let resume = decode_continue(&encode_continue(7, "core/pods/a/b")).unwrap();
        assert_eq!((resume.revision, &*resume.start), (Some(7), "core/pods/a/b\0"));
        let resume = decode_continue(&encode_token(-1, "core/pods/a/b\0")).unwrap();
        assert_eq!((resume.revision, &*resume.start), (None, "core/pods/a/b\0"));
        assert_eq!(decode_continue("!!").err().unwrap().code, 400);
    }

    #[test]
    fn version_matches_need_a_version() {
        let pods = crate::kinds::by_resource("", "v1", "pods").unwrap();
        assert!(check_match(pods, "", "").is_ok());
        assert!(check_match(pods, "5", "Exact").is_ok());
        assert!(check_match(pods, "0", "NotOlderThan").is_ok());
        assert!(check_match(pods, "", "Exact").unwrap_err().message.contains("is forbidden unless resourceVersion is provided"));
        assert!(check_match(pods, "0", "Exact").unwrap_err().message.contains("forbidden for resourceVersion \"0\""));
        assert!(check_match(pods, "5", "Sometimes").unwrap_err().message.contains("Unsupported value"));
    }
}
