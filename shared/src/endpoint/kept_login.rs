//! A login that Secrets Manager keeps: one fetch for all who wait, however many people come.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{SecretsManager, SecretsManagerError};
use crate::config::Secret;

/// While a server refuses a login that was fetched a moment ago, Secrets Manager is left alone.
pub const FETCH_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// After a fetch that failed, Secrets Manager is left alone for so long.
pub const FAILURE_HOLDS_FOR: Duration = Duration::from_secs(1);

/// The login of one server.
#[derive(Debug)]
pub(super) struct KeptLogin {
    secret_id: String,
    manager: SecretsManager,
    fetched: Mutex<Fetched>,
    fetching: tokio::sync::Mutex<()>,
}

/// What the last fetches brought.
#[derive(Debug, Default)]
struct Fetched {
    opened: Option<Opened>,
    failed: Option<(SecretsManagerError, Instant)>,
}

/// The address with a login in it.
#[derive(Clone, Debug)]
struct Opened {
    url: Secret,
    fetched_at: Instant,
}

impl KeptLogin {
    pub(super) fn new(secret_id: String, manager: SecretsManager) -> Self {
        Self { secret_id, manager, fetched: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// The address with the login in it; another one than `refused`, if there is one by now. The fetch outlives a request that
    /// stops waiting for it.
    pub(super) async fn url(
        self: &Arc<Self>,
        address: &Secret,
        refused: Option<&Secret>,
    ) -> Result<Secret, SecretsManagerError> {
        if let Some(known) = self.known(refused) {
            return known;
        }
        let (login, address, refused) = (Arc::clone(self), address.clone(), refused.cloned());
        let fetch = tokio::spawn(async move { login.fetch(&address, refused.as_ref()).await });
        fetch.await.unwrap_or_else(|_| Err(SecretsManagerError::Unavailable("the fetch was given up".to_owned())))
    }

    /// Who comes while another fetches takes what that one brings.
    async fn fetch(&self, address: &Secret, refused: Option<&Secret>) -> Result<Secret, SecretsManagerError> {
        let _one_at_a_time = self.fetching.lock().await;
        if let Some(known) = self.known(refused) {
            return known;
        }
        let login = self.manager.login(&self.secret_id).await;
        let url = login.and_then(|login| {
            login.into_url(address).ok_or_else(|| SecretsManagerError::NoLogin(self.secret_id.clone()))
        });
        let (mut fetched, now) = (self.fetched(), Instant::now());
        match &url {
            Ok(url) => *fetched = Fetched { opened: Some(Opened { url: url.clone(), fetched_at: now }), failed: None },
            Err(error) => fetched.failed = Some((error.clone(), now)),
        }
        url
    }

    /// What can be said without a fetch.
    fn known(&self, refused: Option<&Secret>) -> Option<Result<Secret, SecretsManagerError>> {
        let fetched = self.fetched();
        let usable = fetched
            .opened
            .as_ref()
            .filter(|opened| refused != Some(&opened.url) || opened.fetched_at.elapsed() < FETCH_AGAIN_AFTER);
        let failed = || fetched.failed.as_ref().filter(|(_, at)| at.elapsed() < FAILURE_HOLDS_FOR);
        match usable {
            Some(opened) => Some(Ok(opened.url.clone())),
            None => failed().map(|(error, _)| Err(error.clone())),
        }
    }

    fn fetched(&self) -> MutexGuard<'_, Fetched> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
