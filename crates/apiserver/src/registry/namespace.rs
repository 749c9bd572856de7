//! Namespaces: deleted in two steps (pkg/registry/core/namespace/storage/storage.go).

use crate::object;
use crate::status::ApiError;
use serde_json::Value;

/// The first DELETE marks a Namespace as terminating; once the namespace controller has emptied it and taken the `kubernetes` finalizer
/// off, it goes.
pub(super) fn plan_deletion(mut namespace: Value) -> Result<(Value, bool), ApiError> {
    let held = !object::list(&namespace, &["spec", "finalizers"]).is_empty() || !object::finalizers(&namespace).is_empty();
    if !object::is_deleting(&namespace) {
        super::delete::begin(&mut namespace, 0);
        object::metadata(&mut namespace).shift_remove("deletionGracePeriodSeconds");
        object::map_mut(&mut namespace, "status").insert("phase".into(), "Terminating".into());
    }
    Ok((namespace, held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_terminates_before_it_goes() {
        let namespace = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let (mut namespace, pending) = plan_deletion(namespace).unwrap();
        assert!(pending);
        assert_eq!(namespace["status"]["phase"], "Terminating");
        namespace["spec"]["finalizers"] = json!([]);
        assert!(!plan_deletion(namespace).unwrap().1);
    }
}
