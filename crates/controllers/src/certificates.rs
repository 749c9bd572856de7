//! Certificate signing requests: approval of nodes' own, signatures of what is approved, the end of what is done.
//!
//! Inputs: CertificateSigningRequests, access reviews, the cluster's authority. Outputs: approvals, certificates in the status, deletions.
//! Mirrors `pkg/controller/certificates/{approver,signer,cleaner}`.
//! Guarantees: only what somebody approved is signed, and only by the rules of its signer; signers of others are left alone.

mod cleaner;
mod plan;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use cluster::{ApiServer, Client, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use pki::{Ca, SigningRequest, Usages};
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use plan::{Recognizer, Verdict};

/// An approval that was refused is asked for again after this time: somebody may have got the right.
const ASK_AGAIN: Duration = Duration::from_secs(60);

struct Context {
    client: Client,
    requests: Informer<String>,
    authority: Arc<Ca>,
}

/// Runs the controllers until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, authority: Arc<Ca>, shutdown: CancellationToken) {
    let requests = Informer::start(Api::<CertificateSigningRequest>::all(client.clone()), Selection::all().of(&api), |request| {
        request.metadata.resource_version.clone()
    });
    tokio::select! {
        () = requests.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    requests.subscribe(move |change| keys.add(change.key.clone()));
    let context = Arc::new(Context { client, requests, authority });
    queue.run("certificates", 4, shutdown, |key| sync(context.clone(), key)).await;
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    if context.requests.get(&key).is_none() {
        return Ok(Next::Change);
    }
    let api: Api<CertificateSigningRequest> = Api::all(context.client.clone());
    let Some(request) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    let now = Timestamp::now();
    let left = cleaner::left(&request, now);
    if left.is_zero() {
        return delete(&api, &request, &key).await;
    }
    let next = match plan::plan(&request, now) {
        Verdict::Nothing => None,
        Verdict::Ask(recognizers) => approve(&context, &api, request, &recognizers).await?,
        Verdict::Fail(condition) => {
            let mut failed = request;
            failed.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
            write_status(&api, &failed).await?;
            None
        }
        Verdict::Sign(parsed, life) => {
            sign(&context, &api, request, &parsed, life).await?;
            None
        }
    };
    // A long wait is cut, so that a clock that is set forward counts within the hour.
    Ok(Next::Within(next.unwrap_or(left).min(cleaner::LOOK_AGAIN)))
}

async fn delete(api: &Api<CertificateSigningRequest>, request: &CertificateSigningRequest, key: &Key) -> anyhow::Result<Next> {
    let preconditions = Some(Preconditions { uid: request.metadata.uid.clone(), resource_version: None });
    match api.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).with_context(|| format!("deleting the signing request {key}")),
        _ => Ok(Next::Change),
    }
}

/// Approves a node's request for its own certificate, if its requester has the right to that.
async fn approve(
    context: &Context,
    api: &Api<CertificateSigningRequest>,
    mut request: CertificateSigningRequest,
    recognizers: &[&Recognizer],
) -> anyhow::Result<Option<Duration>> {
    for recognizer in recognizers {
        if !is_allowed(context, &request, recognizer.subresource).await? {
            continue;
        }
        let condition = CertificateSigningRequestCondition {
            type_: "Approved".to_owned(),
            status: "True".to_owned(),
            reason: Some("AutoApproved".to_owned()),
            message: Some(recognizer.message.to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        request.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
        let name = request.metadata.name.clone().unwrap_or_default();
        let written = api.replace_subresource("approval", &name, &PostParams::default(), &request).await;
        return match written {
            Err(error) if is_not_found(&error) => Ok(None),
            other => other.map(|_| None).context("error updating approval for csr"),
        };
    }
    let tried: Vec<&str> = recognizers.iter().map(|recognizer| recognizer.subresource).collect();
    let name = request.metadata.name.as_deref().unwrap_or_default();
    tracing::debug!("recognized csr {name:?} as {tried:?} but subject access review was not approved");
    Ok(Some(ASK_AGAIN))
}

async fn is_allowed(context: &Context, request: &CertificateSigningRequest, subresource: &str) -> anyhow::Result<bool> {
    let spec = &request.spec;
    let attributes = ResourceAttributes {
        group: Some("certificates.k8s.io".to_owned()),
        resource: Some("certificatesigningrequests".to_owned()),
        verb: Some("create".to_owned()),
        subresource: Some(subresource.to_owned()),
        version: Some("*".to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: spec.username.clone(),
            uid: spec.uid.clone(),
            groups: spec.groups.clone(),
            extra: spec.extra.clone(),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await.context("asking for the requester's right")?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn sign(
    context: &Context,
    api: &Api<CertificateSigningRequest>,
    mut request: CertificateSigningRequest,
    parsed: &SigningRequest,
    life: Duration,
) -> anyhow::Result<()> {
    let usages = request.spec.usages.iter().flatten().map(String::as_str);
    let signed = Usages::parse(usages).and_then(|usages| context.authority.sign(parsed, &usages, life, SystemTime::now()));
    let pem = signed.context("error auto signing csr")?;
    request.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes()));
    write_status(api, &request).await
}

async fn write_status(api: &Api<CertificateSigningRequest>, request: &CertificateSigningRequest) -> anyhow::Result<()> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    match api.replace_status(name, &PostParams::default(), request).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(drop).with_context(|| format!("writing the status of the signing request {name}")),
    }
}

/// A condition that ends a request.
fn failure(message: String, now: Timestamp) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: "Failed".to_owned(),
        status: "True".to_owned(),
        reason: Some("SignerValidationFailure".to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        ..CertificateSigningRequestCondition::default()
    }
}
