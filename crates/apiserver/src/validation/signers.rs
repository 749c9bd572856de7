//! Names of signers and of their trust bundles (pkg/apis/core/validation: ValidateSignerName, ValidateClusterTrustBundleName).

use super::field::{Errors, Field};
use super::names;

const LONGEST_DOMAIN: usize = 253;
const LONGEST: usize = 253 + 1 + 253 + 63 + 1;

/// The name of a signer: `example.com/signer-name`.
pub fn name(signer: &Field, errors: &mut Errors) {
    if signer.is_empty() {
        return errors.required(signer, "");
    }
    let parts: Vec<&str> = signer.text().split('/').collect();
    let [domain, path] = parts.as_slice() else {
        return errors.invalid(signer, "must be a fully qualified domain and path of the form 'example.com/signer-name'");
    };
    if domain.len() > LONGEST_DOMAIN {
        errors.too_long(signer, LONGEST_DOMAIN);
    }
    labels(signer, domain, names::dns_label, errors);
    if !domain.contains('.') {
        errors.invalid_value(signer, *domain, "should be a domain with at least two segments separated by dots");
    }
    labels(signer, path, names::dns_subdomain, errors);
    if signer.text().len() > LONGEST {
        errors.too_long(signer, LONGEST);
    }
}

/// The first label of a part that is wrong.
fn labels(signer: &Field, part: &str, rule: fn(&str) -> Vec<String>, errors: &mut Errors) {
    if let Some((label, problems)) = part.split('.').map(|label| (label, rule(label))).find(|(_, problems)| !problems.is_empty()) {
        problems.into_iter().for_each(|problem| errors.invalid_value(signer, part, format!("validating label {label:?}: {problem}")));
    }
}

/// What is wrong with the name of a trust bundle of this signer; of a bundle without one where it is empty.
pub fn bundle_name(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        if name.contains(':') {
            return vec!["ClusterTrustBundle without signer name must not have \":\" in its name".into()];
        }
        return names::dns_subdomain(name);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::dns_subdomain(rest),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
    }
}

/// The signer that a trust bundle's name says; empty where it says none.
pub fn signer_of(bundle: &str) -> String {
    bundle.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default()
}
