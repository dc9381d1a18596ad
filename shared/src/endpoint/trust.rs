//! Certificate authorities that sign the certificates of our servers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The authorities of Amazon RDS and Aurora, which are not among the public ones.
pub(super) const AMAZON_RDS: &str = include_str!("../../certs/rds.pem");

/// Some authorities, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedAuthorities(String);

/// They cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("it holds no certificate authority that can be read")]
pub struct AuthoritiesError;

impl TrustedAuthorities {
    /// Reads them from the text of a PEM file; each must be one.
    pub fn parse(pem: String) -> Result<Self, AuthoritiesError> {
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            store.add(certificate.map_err(|_| AuthoritiesError)?).map_err(|_| AuthoritiesError)?;
        }
        if store.is_empty() { Err(AuthoritiesError) } else { Ok(Self(pem)) }
    }

    /// As PEM.
    pub fn as_pem(&self) -> &str {
        &self.0
    }

    /// As PEM, together with the public ones: for a client that takes the place of its own by what it is given.
    pub fn with_public_ones(&self) -> String {
        let mut pem = self.0.clone();
        for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
            let text = BASE64_STANDARD.encode(certificate);
            pem.push_str(&format!("\n-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"));
        }
        pem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authorities_of_amazon_rds_and_the_public_ones_can_all_be_read() {
        let rds = TrustedAuthorities::parse(AMAZON_RDS.to_owned()).unwrap();
        assert_eq!(AMAZON_RDS.matches(", until 2").count(), AMAZON_RDS.matches("BEGIN CERTIFICATE").count());
        let all = rds.with_public_ones();
        assert!(all.matches("BEGIN CERTIFICATE").count() > AMAZON_RDS.matches("BEGIN CERTIFICATE").count() + 100);
        assert!(TrustedAuthorities::parse(all).is_ok());
    }

    #[test]
    fn a_file_without_an_authority_or_with_a_broken_one_is_refused() {
        let broken = AMAZON_RDS.replacen("MII", "MIj", 1);
        for pem in ["", "hello", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &broken] {
            assert!(TrustedAuthorities::parse(pem.to_owned()).is_err(), "{pem:.60}");
        }
    }
}
