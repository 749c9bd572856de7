use super::*;

fn read(text: &str) -> Result<Vec<Provider>, String> {
    use thiserror_ext::AsReport as _;
    let providers = parse(text.as_bytes()).and_then(|parsed| merge(vec![parsed]));
    providers.map_err(|error| error.to_report_string())
}

fn whole(providers: &str) -> String {
    format!("{{kind: CredentialProviderConfig, apiVersion: kubelet.config.k8s.io/v1, providers: {providers}}}")
}

/// One provider, with more members or others.
fn one(more: &str) -> String {
    let mut members = vec![
        ("name", "p".to_owned()),
        ("matchImages", "['*.reg.io', 'reg.io:5000/team']".to_owned()),
        ("defaultCacheDuration", "1m30s".to_owned()),
        ("apiVersion", "credentialprovider.kubelet.k8s.io/v1".to_owned()),
    ];
    let more: serde_json::Value = serde_yaml_ng::from_str(more).unwrap();
    let more = more.as_object().unwrap();
    members.retain(|(name, _)| !more.contains_key(*name));
    let more = more.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| format!("{name}: {value}"));
    whole(&format!("[{{{}}}]", members.iter().map(|(name, value)| format!("{name}: {value}")).chain(more).collect::<Vec<_>>().join(", ")))
}

#[test]
fn a_provider_is_read_with_everything() {
    let tokens = "{serviceAccountTokenAudience: aud, cacheType: Token, requireServiceAccount: true, \
                  requiredServiceAccountAnnotationKeys: [a.io/b], optionalServiceAccountAnnotationKeys: [C]}";
    let text = one(&format!("{{args: [get, '$(x)'], env: [{{name: A, value: b}}, {{name: E}}], tokenAttributes: {tokens}}}"));
    let read = read(&text).unwrap().remove(0);
    assert_eq!((read.name.as_str(), read.version, read.default_cache_duration), ("p", Version::V1, Duration::from_secs(90)));
    assert_eq!(read.args, ["get", "$(x)"]);
    assert_eq!(read.env, [("A".to_owned(), "b".to_owned()), ("E".to_owned(), String::new())]);
    let expected = TokenAttributes {
        audience: "aud".into(),
        by_token: true,
        required: true,
        required_annotations: vec!["a.io/b".into()],
        optional_annotations: vec!["C".into()],
    };
    assert_eq!(read.tokens, Some(expected));
    let asked = |image: &str| read.is_for(image);
    assert!(asked("a.reg.io/x") && asked("reg.io:5000/team/x") && !asked("reg.io/team/x") && !asked("b.a.reg.io/x"));
}

#[test]
fn older_versions_have_no_tokens() {
    for version in ["v1beta1", "v1alpha1"] {
        let older = |text: String| text.replace("kubelet.config.k8s.io/v1,", &format!("kubelet.config.k8s.io/{version},"));
        assert_eq!(read(&older(one("{}"))).unwrap().len(), 1);
        let refused = read(&older(one("{tokenAttributes: {}}"))).unwrap_err();
        assert!(refused.starts_with("strict decoding error: unknown field `tokenAttributes`"), "{refused}");
    }
}

#[test]
fn what_is_no_configuration_is_refused() {
    for (text, why) in [
        (
            "kind: Pod\napiVersion: v1",
            "failed to decode \"Pod\" of \"v1\": it must be CredentialProviderConfig of kubelet.config.k8s.io/v1, v1beta1 or v1alpha1",
        ),
        ("---\na: 1\n---\nb: 2", "it must hold one document"),
        ("", "failed to decode \"\" of \"\""),
        (&whole("[{nane: x}]"), "strict decoding error: unknown field `nane`"),
        (&whole("[{name: [x]}]"), "strict decoding error: invalid type: sequence, expected a string"),
        ("{", "it is no YAML"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(why), "{text:?}: {error}");
    }
    let large = vec![b' '; MAX_FILE as usize + 1];
    assert!(matches!(parse(&large), Err(ConfigError::TooLarge)));
}

#[test]
fn wrong_values_are_refused_in_upstreams_words() {
    let tokens = |more: &str| {
        let least = "serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true";
        one(&format!("{{tokenAttributes: {{{least}, {more}}}}}"))
    };
    let supported = "supported values: \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\", \
                     \"credentialprovider.kubelet.k8s.io/v1beta1\"";
    let version = format!("providers.apiVersion: Unsupported value: \"v2\": {supported}");
    for (text, why) in [
        (whole("[]"), "providers: Required value: at least 1 item in plugins is required"),
        (one("{name: a/b}"), "providers.name: Invalid value: \"a/b\": provider name cannot contain '/'"),
        (one("{name: a b}"), "providers.name: Invalid value: \"a b\": provider name cannot contain spaces"),
        (one("{name: '.'}"), "providers.name: Invalid value: \".\": provider name cannot be '.'"),
        (one("{name: '..'}"), "providers.name: Invalid value: \"..\": provider name cannot be '..'"),
        (one("{name: ''}"), "providers.name: Invalid value: \"\": provider name cannot be empty"),
        (one(r"{name: 'a\b'}"), r#"providers.name: Invalid value: "a\\b": provider name must be the name of a file"#),
        (one("{apiVersion: null}"), "providers.apiVersion: Required value"),
        (one("{apiVersion: v2}"), &version),
        (one("{matchImages: []}"), "providers.matchImages: Required value: at least 1 item in matchImages is required"),
        (
            one("{matchImages: ['a b.io']}"),
            "providers.matchImages: Invalid value: \"a b.io\": match image is invalid: parse \"https://a b.io\": invalid character \" \" in host name",
        ),
        (one("{defaultCacheDuration: null}"), "providers.defaultCacheDuration: Required value"),
        (one("{defaultCacheDuration: -1s}"), "providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0"),
        (one("{defaultCacheDuration: 1d}"), "providers.defaultCacheDuration: Invalid value: \"1d\": time: unknown unit \"d\" in duration \"1d\""),
        (
            one("{apiVersion: credentialprovider.kubelet.k8s.io/v1beta1, tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, \
                 requireServiceAccount: true}}"),
            "providers.tokenAttributes: Forbidden: tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version",
        ),
        (
            one("{tokenAttributes: {}}"),
            "[providers.tokenAttributes.serviceAccountTokenAudience: Required value, providers.tokenAttributes.requireServiceAccount: Required \
             value, providers.tokenAttributes.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. \
             Supported values are: ServiceAccount, Token]",
        ),
        (
            tokens("cacheType: Pod").replace("cacheType: Token, ", "").replace("\"cacheType\":\"Token\",", ""),
            "providers.tokenAttributes.cacheType: Unsupported value: \"Pod\": supported values: \"ServiceAccount\", \"Token\"",
        ),
        (
            one("{tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, \
                 requiredServiceAccountAnnotationKeys: [a]}}"),
            "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when \
             requiredServiceAccountAnnotationKeys is set",
        ),
        (
            tokens("optionalServiceAccountAnnotationKeys: [a, a]"),
            "providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Duplicate value: \"a\"",
        ),
        (
            tokens("optionalServiceAccountAnnotationKeys: [a], requiredServiceAccountAnnotationKeys: [a]"),
            "providers.tokenAttributes: Invalid value: [\"a\"]: annotation keys cannot be both required and optional",
        ),
        (
            tokens("optionalServiceAccountAnnotationKeys: ['/']"),
            "[providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Invalid value: \"/\": prefix part must be non-empty, \
             providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Invalid value: \"/\": name part must be non-empty, \
             providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Invalid value: \"/\": name part must consist of alphanumeric \
             characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
             regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')]",
        ),
    ] {
        let why = format!("failed to validate credential provider config: {why}");
        assert_eq!(read(&text), Err(why), "{text}");
    }
}

#[test]
fn files_are_merged_in_their_order_and_hashed_together() {
    let parsed = |name: &str| parse(one(&format!("{{name: {name}}}")).as_bytes()).unwrap();
    let names: Vec<_> = merge(vec![parsed("b"), parsed("a")]).unwrap().into_iter().map(|provider| provider.name).collect();
    assert_eq!(names, ["b", "a"]);
    let twice = merge(vec![parsed("b"), parsed("b")]).unwrap_err().to_string();
    assert_eq!(twice, "duplicate provider name \"b\" found in configuration file(s)");
    let (one, two): (&[u8], &[u8]) = (b"ab", b"c");
    assert_ne!(hash([one, two]), hash([b"a".as_slice(), b"bc"]), "lengths count");
    let expected = hex(&Sha256::digest(b"\0\0\0\0\0\0\0\x02ab\0\0\0\0\0\0\0\x01c"));
    assert_eq!(hash([one, two]), format!("sha256:{expected}"));
}
