//! Certificates for private servers, signed by an authority of our own, good or flawed.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use shared::config::Secret;
use shared::endpoint::{Endpoint, TrustedAuthorities};

use super::ready;

/// The certificate of a server, its key, and the authority that signed it, each a PEM file.
#[derive(Clone, Debug)]
pub struct Certificates {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    flaw: Option<Flaw>,
}

/// Why a client must refuse a certificate, though its authority is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It was good until 2020.
    Expired,
    /// It is for `other.example`.
    OtherHost,
}

impl Certificates {
    /// Makes an authority and a certificate for `localhost` and 127.0.0.1, and puts them into `dir`.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        Self::create_as(dir, None)
    }

    /// The same with a certificate that clients must refuse.
    pub fn create_flawed(dir: &Path, flaw: Flaw) -> anyhow::Result<Self> {
        Self::create_as(dir, Some(flaw))
    }

    fn create_as(dir: &Path, flaw: Option<Flaw>) -> anyhow::Result<Self> {
        let dir = ready::create_dir(dir)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, format!("authority {:08x}", rand::random::<u32>()));
        let authority_key = KeyPair::generate()?;
        let authority = params.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(params, authority_key);

        let hosts: &[&str] =
            if flaw == Some(Flaw::OtherHost) { &["other.example"] } else { &["localhost", "127.0.0.1"] };
        let mut params = CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())?;
        if flaw == Some(Flaw::Expired) {
            (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.pem();

        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            authority: write("authority.pem", &authority)?,
            certificate: write("server.pem", &certificate)?,
            key: write("server.key", &key.serialize_pem())?,
            flaw,
        })
    }

    /// What clients are to trust: a value for `TLS_CA_FILE`.
    #[must_use]
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// What the server shows.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The key that belongs to it.
    #[must_use]
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// Whether a client that trusts the authority accepts the certificate.
    #[must_use]
    pub fn are_good(&self) -> bool {
        self.flaw.is_none()
    }
}

/// How we reach a private server ourselves.
pub fn endpoint(url: &str, tls: Option<&Certificates>) -> anyhow::Result<Endpoint> {
    let authorities = match tls {
        Some(tls) => Some(TrustedAuthorities::parse(std::fs::read_to_string(tls.authority())?)?),
        None => None,
    };
    Ok(Endpoint::new(Secret::new(url)).trusting(authorities))
}

/// Whether something listens at this address: all that can be asked of a server whose certificate no client accepts.
pub async fn listens(url: &str) -> anyhow::Result<()> {
    let url = reqwest::Url::parse(url)?;
    let (host, port) = (url.host_str().context("no host")?, url.port().context("no port")?);
    tokio::net::TcpStream::connect((host, port)).await?;
    Ok(())
}
