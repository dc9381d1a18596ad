//! Where a server is, and what opens it: its address, a login that Secrets Manager may keep, and whom to trust.

mod clients;
mod kept_login;
mod secrets_manager;
mod trust;

use std::sync::Arc;

use kept_login::KeptLogin;
pub use kept_login::{FAILURE_HOLDS_FOR, FETCH_AGAIN_AFTER};
pub use secrets_manager::{Credentials, SecretsManager, SecretsManagerError};
pub use trust::{AuthoritiesError, TrustedAuthorities};

use crate::config::Secret;

/// The address of a server with the login that opens it. Clones share what was fetched.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: Secret,
    kept_login: Option<Arc<KeptLogin>>,
    trusted: Option<Arc<TrustedAuthorities>>,
}

impl Endpoint {
    /// An address that holds its login, if there is one.
    #[must_use]
    pub fn new(url: Secret) -> Self {
        Self { url, kept_login: None, trusted: None }
    }

    /// The same address, with these authorities trusted besides the public ones.
    #[must_use]
    pub fn trusting(mut self, authorities: Option<TrustedAuthorities>) -> Self {
        self.trusted = authorities.map(Arc::new);
        self
    }

    /// The same address, opened by the login in this secret.
    #[must_use]
    pub fn with_login(mut self, secret_id: String, manager: SecretsManager) -> Self {
        self.kept_login = Some(Arc::new(KeptLogin::new(secret_id, manager)));
        self
    }

    /// Opens a connection to the address with its login. Where the server refuses a login that Secrets Manager keeps, it may have
    /// been rotated: it is fetched again, and the connection tried once more.
    pub async fn open<T, E: From<SecretsManagerError>, F: Future<Output = Result<T, E>>>(
        &self,
        open: impl Fn(Secret) -> F,
        is_login_refused: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let url = self.url().await?;
        match open(url.clone()).await {
            Err(error) if is_login_refused(&error) => match self.newer_url(&url).await? {
                Some(url) => open(url).await,
                None => Err(error),
            },
            outcome => outcome,
        }
    }

    /// The address with its login, which is fetched where nobody has yet.
    pub async fn url(&self) -> Result<Secret, SecretsManagerError> {
        match &self.kept_login {
            Some(login) => login.url(&self.url, None).await,
            None => Ok(self.url.clone()),
        }
    }

    /// The same after the server refused it, if Secrets Manager has another login by now.
    pub async fn newer_url(&self, refused: &Secret) -> Result<Option<Secret>, SecretsManagerError> {
        let Some(login) = &self.kept_login else { return Ok(None) };
        let newer = login.url(&self.url, Some(refused)).await?;
        Ok(Some(newer).filter(|newer| newer != refused))
    }
}
