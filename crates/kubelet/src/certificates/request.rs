//! Signing requests at the API server: made or found again, and waited for.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{Api, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use pki::{Key, SigningRequest, Subject};
use thiserror_ext::AsReport as _;

use super::plan::Purpose;

/// How long a lost watch, or a server that does not answer, is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("cannot make a certificate signing request")]
    Make(#[source] pki::Error),
    #[error("cannot create certificate signing request")]
    Create(#[source] Box<kube::Error>),
    #[error("cannot retrieve certificate signing request {name}")]
    Read {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("certificate signing request {name} is there already, but {reason}; delete it: kubectl delete csr {name}")]
    Incompatible { name: String, reason: String },
    #[error("certificate signing request {name} is denied, reason: {reason}, message: {message}; to ask again: kubectl delete csr {name}")]
    Denied { name: String, reason: String, message: String },
    #[error("certificate signing request {name} failed, reason: {reason}, message: {message}; to ask again: kubectl delete csr {name}")]
    Failed { name: String, reason: String, message: String },
    #[error("certificate signing request {0} was deleted")]
    Deleted(String),
    #[error("certificate signing request {0} was made anew by others")]
    Replaced(String),
    #[error("nobody approved or signed certificate signing request {name} within {minutes} minutes; see it with kubectl describe csr {name}")]
    TimedOut { name: String, minutes: u64 },
    #[error("the certificate of certificate signing request {name} cannot be used: {reason}")]
    Unusable { name: String, reason: String },
}

impl RequestError {
    /// Whether the API server itself has answered, so that it is not the way to it that is missing.
    pub(crate) fn server_answers(&self) -> bool {
        match self {
            Self::Create(source) | Self::Read { source, .. } => matches!(&**source, kube::Error::Api(status) if status.code < 500),
            Self::Make(_) => false,
            _ => true,
        }
    }
}

/// A request that the API server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) name: String,
    uid: String,
}

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) subject: &'a Subject,
    pub(crate) key: &'a Key,
    /// The node's first request has a name that follows from its content.
    pub(crate) is_first: bool,
}

impl Wanted<'_> {
    fn object(&self) -> Result<CertificateSigningRequest, RequestError> {
        let usages = self.purpose.usages(self.key, self.is_first);
        let name = self.is_first.then(|| self.key.request_name(self.subject, &usages));
        Ok(CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: name.is_none().then(|| "csr-".to_owned()), name, ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(self.key.request(self.subject).map_err(RequestError::Make)?.into_bytes()),
                signer_name: self.purpose.signer().to_owned(),
                usages: Some(usages.into_iter().map(str::to_owned).collect()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        })
    }

    /// Why a request of this name that is there already is another one.
    fn differs(&self, found: &CertificateSigningRequest) -> Option<String> {
        let Ok(request) = SigningRequest::parse(&found.spec.request.0) else { return Some("it cannot be read".to_owned()) };
        if (&request.common_name, &request.organisations) != (&self.subject.common_name, &self.subject.organisations) {
            return Some(format!("its subject is {:?} of {:?}", request.common_name, request.organisations));
        }
        if found.spec.signer_name != self.purpose.signer() {
            return Some(format!("its signer is {:?}", found.spec.signer_name));
        }
        if request.public_key() != self.key.public_der() {
            return Some("it is of another key".to_owned());
        }
        let certificate = found.status.as_ref()?.certificate.as_ref().filter(|certificate| !certificate.0.is_empty())?;
        let end = std::str::from_utf8(&certificate.0).ok().and_then(|pem| pki::not_after(pem).ok());
        match end {
            Some(end) if end >= SystemTime::now() => None,
            Some(_) => Some("its certificate has expired".to_owned()),
            None => Some("its certificate cannot be read".to_owned()),
        }
    }
}

/// Sends a request; a first one that was sent before is found again.
pub(crate) async fn submit(client: &kube::Client, wanted: &Wanted<'_>) -> Result<Submitted, RequestError> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let object = wanted.object()?;
    let made = match (api.create(&PostParams::default(), &object).await, &object.metadata.name) {
        (Ok(made), _) => made,
        (Err(error), Some(name)) if is_there_already(&error) => {
            let read = |source| RequestError::Read { name: name.clone(), source: Box::new(source) };
            let found = api.get(name).await.map_err(read)?;
            if let Some(reason) = wanted.differs(&found) {
                return Err(RequestError::Incompatible { name: name.clone(), reason });
            }
            tracing::info!(csr = name, "the certificate signing request of an earlier start is still there; waiting for its certificate");
            found
        }
        (Err(error), _) => return Err(RequestError::Create(Box::new(error))),
    };
    Ok(Submitted { name: made.metadata.name.unwrap_or_default(), uid: made.metadata.uid.unwrap_or_default() })
}

fn is_there_already(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

/// What became of a request: its certificate, or none yet.
fn judge(found: &CertificateSigningRequest, asked: &Submitted) -> Result<Option<String>, RequestError> {
    let name = || asked.name.clone();
    if found.metadata.uid.as_deref() != Some(asked.uid.as_str()) {
        return Err(RequestError::Replaced(name()));
    }
    let Some(status) = &found.status else { return Ok(None) };
    let mut approved = false;
    for condition in status.conditions.iter().flatten() {
        let (reason, message) = (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default());
        match condition.type_.as_str() {
            "Denied" => return Err(RequestError::Denied { name: name(), reason, message }),
            "Failed" => return Err(RequestError::Failed { name: name(), reason, message }),
            "Approved" => approved = true,
            _ => {}
        }
    }
    let Some(certificate) = status.certificate.as_ref().filter(|certificate| approved && !certificate.0.is_empty()) else { return Ok(None) };
    let text = String::from_utf8(certificate.0.clone());
    text.map(Some).map_err(|_| RequestError::Unusable { name: name(), reason: "it is no text".to_owned() })
}

/// Waits for the certificate, PEM, at most `patience`.
pub(crate) async fn issued(client: &kube::Client, asked: &Submitted, patience: Duration) -> Result<String, RequestError> {
    let waiting = async {
        loop {
            match look(client, asked).await {
                Ok(Some(certificate)) => return Ok(certificate),
                Ok(None) => {}
                Err(Look::End(error)) => return Err(error),
                Err(Look::Again(error)) => {
                    tracing::debug!(csr = asked.name, error = %error.as_report(), "the certificate signing request cannot be read; trying again");
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let timed_out = || RequestError::TimedOut { name: asked.name.clone(), minutes: patience.as_secs().div_ceil(60) };
    tokio::time::timeout(patience, waiting).await.unwrap_or_else(|_| Err(timed_out()))
}

enum Look {
    End(RequestError),
    Again(Box<kube::Error>),
}

impl From<RequestError> for Look {
    fn from(error: RequestError) -> Self {
        Self::End(error)
    }
}

impl From<kube::Error> for Look {
    fn from(error: kube::Error) -> Self {
        Self::Again(Box::new(error))
    }
}

/// One list and one watch; none when the watch ended.
async fn look(client: &kube::Client, asked: &Submitted) -> Result<Option<String>, Look> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let only = format!("metadata.name={}", asked.name);
    let list = api.list(&ListParams::default().fields(&only)).await?;
    let Some(found) = list.items.first() else { return Err(RequestError::Deleted(asked.name.clone()).into()) };
    if let Some(certificate) = judge(found, asked)? {
        return Ok(Some(certificate));
    }
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut events = Box::pin(api.watch(&WatchParams::default().fields(&only), &version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(found) | WatchEvent::Modified(found) => {
                if let Some(certificate) = judge(&found, asked)? {
                    return Ok(Some(certificate));
                }
            }
            WatchEvent::Deleted(_) => return Err(RequestError::Deleted(asked.name.clone()).into()),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::certificates::client_subject;

    fn with(status: serde_json::Value) -> CertificateSigningRequest {
        let spec = json!({"request": "", "signerName": "a/b"});
        serde_json::from_value(json!({"metadata": {"name": "csr-1", "uid": "u"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_request_is_waited_for_until_it_is_issued_or_refused() {
        let asked = Submitted { name: "csr-1".into(), uid: "u".into() };
        let verdict = |status: serde_json::Value| judge(&with(status), &asked).map_err(|error| error.to_string());
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "R", "message": "M"});
        assert_eq!(verdict(json!({})), Ok(None));
        assert_eq!(verdict(json!({"conditions": [condition("Approved")]})), Ok(None), "approved, not signed yet");
        assert_eq!(verdict(json!({"certificate": "QQ=="})), Ok(None), "signed without an approval");
        assert_eq!(verdict(json!({"conditions": [condition("Approved")], "certificate": "QQ=="})), Ok(Some("A".into())));
        for (type_, begin) in [
            ("Denied", "certificate signing request csr-1 is denied, reason: R, message: M; to ask again"),
            ("Failed", "certificate signing request csr-1 failed, reason: R, message: M; to ask again"),
        ] {
            let error = verdict(json!({"conditions": [condition("Approved"), condition(type_)]})).unwrap_err();
            assert!(error.starts_with(begin), "{error}");
        }
        let other = Submitted { uid: "v".into(), ..asked };
        assert!(matches!(judge(&with(json!({})), &other), Err(RequestError::Replaced(_))));
    }

    #[test]
    fn requests_say_what_upstreams_say() {
        let (key, subject) = (Key::generate().unwrap(), client_subject("win01"));
        let wanted = Wanted { purpose: Purpose::Client, subject: &subject, key: &key, is_first: true };
        let object = wanted.object().unwrap();
        assert!(object.metadata.name.as_ref().unwrap().starts_with("node-csr-") && object.metadata.generate_name.is_none());
        assert_eq!(object.spec.signer_name, "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(object.spec.usages.as_deref().unwrap(), ["digital signature", "client auth"]);
        assert_eq!(object.spec.expiration_seconds, None);
        let later = Wanted { is_first: false, purpose: Purpose::Serving, ..wanted }.object().unwrap();
        assert_eq!((later.metadata.name, later.metadata.generate_name.as_deref()), (None, Some("csr-")));
        assert_eq!(later.spec.signer_name, "kubernetes.io/kubelet-serving");
    }

    #[test]
    fn a_request_of_before_is_only_used_when_it_is_the_same() {
        let (key, subject) = (Key::generate().unwrap(), client_subject("win01"));
        let wanted = Wanted { purpose: Purpose::Client, subject: &subject, key: &key, is_first: true };
        let same = wanted.object().unwrap();
        assert_eq!(wanted.differs(&same), None);
        let other_key = Key::generate().unwrap();
        let of_other_key = Wanted { key: &other_key, ..wanted }.object().unwrap();
        assert_eq!(wanted.differs(&of_other_key).unwrap(), "it is of another key");
        let other_subject = client_subject("win02");
        let of_other = Wanted { subject: &other_subject, ..wanted }.object().unwrap();
        assert!(wanted.differs(&of_other).unwrap().starts_with("its subject is \"system:node:win02\""));
        let mut signer = same.clone();
        signer.spec.signer_name = "a/b".into();
        assert_eq!(wanted.differs(&signer).unwrap(), "its signer is \"a/b\"");
        let issue = |life: u64| {
            let ca = pki::Ca::generate("ca", Duration::from_secs(life)).unwrap();
            let mut issued = same.clone();
            issued.status.get_or_insert_default().certificate = Some(ByteString(ca.cert_pem().as_bytes().to_vec()));
            wanted.differs(&issued)
        };
        assert_eq!(issue(3600), None);
        assert_eq!(issue(0).unwrap(), "its certificate has expired");
    }
}
