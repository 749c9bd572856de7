//! The proxy against the embedded API server and a simulated Windows host, with everything between them that can go wrong.

mod api {
    pub mod link;
    mod taint;
    mod watches;
    pub mod world;
}
