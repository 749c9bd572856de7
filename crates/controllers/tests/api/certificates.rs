//! Certificate signing requests against the real API server.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn request(name: &str, signer: &str, cn: &str, org: &str) -> CertificateSigningRequest {
    let usages = json!(["digital signature", "client auth"]);
    let mut request: CertificateSigningRequest =
        object(json!({"metadata": {"name": name}, "spec": {"request": "", "signerName": signer, "usages": usages, "expirationSeconds": 3600}}));
    request.spec.request = ByteString(pki::new_csr(cn, &[org.to_owned()], &[], &[]).unwrap().0.into_bytes());
    request
}

#[tokio::test]
async fn nodes_get_certificates_and_people_when_somebody_approves() {
    let mut cluster = Cluster::start().await;
    let authority = Arc::new(pki::Ca::generate("ca", Duration::from_secs(86_400)).unwrap());
    cluster.start_certificates(authority.clone());
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.admin());
    let status = async |name: &str| requests.get(name).await.unwrap().status.unwrap_or_default();
    let issued = async |name: &str| status(name).await.certificate.map(|pem| String::from_utf8(pem.0).unwrap());

    // Whoever may do anything may create the subresource that approval asks for.
    create(&requests, &request("node", "kubernetes.io/kube-apiserver-client-kubelet", "system:node:win01", "system:nodes")).await;
    let pem = until_async("the node's certificate", async || issued("node").await).await;
    assert!(pki::not_after(&pem).unwrap() <= pki::not_after(authority.cert_pem()).unwrap());
    let conditions = status("node").await.conditions.unwrap();
    let message = "Auto approving kubelet client certificate after SubjectAccessReview.";
    assert_eq!((conditions[0].reason.as_deref(), conditions[0].message.as_deref()), (Some("AutoApproved"), Some(message)));

    create(&requests, &request("jane", "kubernetes.io/kube-apiserver-client", "jane", "dev")).await;
    create(&requests, &request("wrong", "kubernetes.io/kubelet-serving", "jane", "dev")).await;
    assert!(status("jane").await.conditions.is_none());
    let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "by hand"}]}});
    for name in ["jane", "wrong"] {
        requests.patch_approval(name, &PatchParams::default(), &Patch::Merge(&approval)).await.unwrap();
    }
    until_async("jane's certificate", async || issued("jane").await).await;
    let failure = async || status("wrong").await.conditions.unwrap_or_default().into_iter().find(|one| one.type_ == "Failed");
    let failed = until_async("what no kubelet asks for fails", failure).await;
    assert_eq!(failed.message.as_deref(), Some("subject organization is not system:nodes"));
    cluster.stop().await;
}
