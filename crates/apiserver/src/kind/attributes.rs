//! What hooks are told of a write: who writes what to which object, and what else the cluster has.

use super::{Kind, Kinds, Subresource};
use crate::alloc::Allocators;
use crate::audit::Annotations;
use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::outgoing::Pool;
use crate::store::Store;
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};

/// What a server has.
pub struct Cluster {
    /// Where objects live.
    pub store: Arc<Store>,
    /// What is served.
    pub kinds: Kinds,
    /// ClusterIPs and ports that are taken.
    pub allocators: Allocators,
    /// The authorizer: role writes are checked against it.
    pub authorizer: Arc<Authorizer>,
    /// Connections to webhooks that are kept.
    pub webhooks: Pool,
}

/// Who writes, as `managedFields` name it.
#[derive(Clone, Debug)]
pub struct FieldWriter {
    /// `fieldManager`, or the program of the user agent; "" is unknown.
    pub manager: String,
    /// The subresource that is written; "" for the object itself.
    pub subresource: String,
    /// Whether the write is an apply, which says itself who owns what.
    pub applies: bool,
    /// The time that entries get.
    pub now: jiff::Timestamp,
}

impl FieldWriter {
    /// A part of the control plane, which writes an object itself.
    pub fn own(manager: &str) -> Self {
        Self { manager: manager.to_owned(), subresource: String::new(), applies: false, now: jiff::Timestamp::now() }
    }
}

/// The writer of an object, and the options of the request.
pub struct WriteContext {
    pub user: UserInfo,
    /// Who owns what the write changes; absent for writes of the server itself, which own nothing.
    pub fields: Option<FieldWriter>,
    /// `dryRun=All`: everything but the write.
    pub dry_run: bool,
    /// The options of the request as admission sees them, without their kind.
    pub options: Map<String, Value>,
    /// What the request's audit event says of the write.
    pub audit: Arc<Annotations>,
    /// Sent back as Warning headers.
    pub warnings: Mutex<Vec<String>>,
}

impl WriteContext {
    /// A context for `user`.
    pub fn new(user: UserInfo, dry_run: bool) -> Self {
        Self { user, fields: None, dry_run, options: Map::new(), audit: Arc::default(), warnings: Mutex::new(Vec::new()) }
    }

    /// The same for a write whose fields get an owner.
    #[must_use]
    pub fn with_fields(self, fields: FieldWriter) -> Self {
        Self { fields: Some(fields), ..self }
    }

    /// The same with the options of a request and the annotations of its audit event.
    #[must_use]
    pub fn with_options(self, options: Map<String, Value>, audit: Arc<Annotations>) -> Self {
        Self { options, audit, ..self }
    }

    /// Adds a warning for the client, once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Takes the warnings collected so far.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which part of an object a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself: everything but status.
    Main,
    /// The status subresource.
    Status,
    /// The object itself, through its Scale.
    Scale,
    /// Another subresource that writes a part of the object, by its name.
    Other(&'static str),
    /// A write of the server itself (binding, eviction …): taken as it is.
    Internal,
}

/// `admission.k8s.io/v1` Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// A write that waits for admission.
pub struct Attributes<'a> {
    pub cluster: &'a Cluster,
    pub context: &'a WriteContext,
    pub kind: &'a Arc<Kind>,
    pub operation: Operation,
    pub part: Part,
    /// "" for the object itself.
    pub subresource: &'a str,
    /// "" for cluster scope.
    pub namespace: &'a str,
    /// "" while a name is still to be generated.
    pub name: &'a str,
    /// The stored state: of updates, and of deletions once it is known.
    pub old: Option<&'a Value>,
}

impl<'a> Attributes<'a> {
    /// Of a creation.
    pub fn create(cluster: &'a Cluster, context: &'a WriteContext, kind: &'a Arc<Kind>, namespace: &'a str, name: &'a str) -> Self {
        Self { cluster, context, kind, operation: Operation::Create, part: Part::Main, subresource: "", namespace, name, old: None }
    }

    /// Of an update of a part.
    pub fn update(self, part: Part, old: &'a Value) -> Self {
        let subresource = match part {
            Part::Status => "status",
            Part::Scale => "scale",
            Part::Other(name) => name,
            Part::Main | Part::Internal => "",
        };
        Self { operation: Operation::Update, part, subresource, old: Some(old), ..self }
    }

    /// Of a deletion; the object is known once it has been found.
    pub fn delete(self, old: Option<&'a Value>) -> Self {
        Self { operation: Operation::Delete, old, ..self }
    }

    /// Of a creation below the object (`binding`, `eviction`), or of a connection.
    pub fn below(self, operation: Operation, subresource: &'a str) -> Self {
        Self { operation, subresource, ..self }
    }

    /// Whether what is admitted is an object of the kind, not the body of a subresource.
    pub fn is_of_kind(&self) -> bool {
        let kind = self.kind;
        self.object_kind() == (&*kind.group, &*kind.version, &*kind.kind)
    }

    /// Group, version and kind of what is admitted: of the object, or of the subresource's own body.
    pub fn object_kind(&self) -> (&'a str, &'a str, &'a str) {
        let kind: &'a Kind = self.kind;
        match kind.subresource(self.subresource) {
            Some(Subresource { body, .. }) => (&body.group, &body.version, &body.kind),
            None => (&kind.group, &kind.version, &kind.kind),
        }
    }
}
