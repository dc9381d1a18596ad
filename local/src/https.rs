//! HTTP clients that speak HTTPS, with the one cryptography library that all of Onrush uses.

/// A client builder.
pub fn client_builder() -> reqwest::ClientBuilder {
    // Fails only where a provider was chosen before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
