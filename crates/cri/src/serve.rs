//! Runtimes written in Rust: the calls that one answers, and "unimplemented" for the rest.

/// Implements one of CRI's service traits for a type: the methods given, and a refusal of those in `rest`.
///
/// `serve! { RuntimeService for Runtime { async fn version(…) … } rest { exec(ExecRequest) -> ExecResponse; } }`
#[macro_export]
macro_rules! serve {
    ($trait:ident for $runtime:ident { $($real:tt)* } rest { $($method:ident($request:ident) -> $response:ident;)* }) => {
        #[$crate::tonic::async_trait]
        impl $trait for $runtime {
            $($real)*
            $(async fn $method(&self, _: $crate::tonic::Request<$crate::v1::$request>) -> Result<$crate::tonic::Response<$crate::v1::$response>, $crate::tonic::Status> {
                Err($crate::tonic::Status::unimplemented(stringify!($method)))
            })*
        }
    };
}
