//! The clients of the three servers, made from an endpoint: trust is the same for all who connect.

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use mysql_async::{Opts, OptsBuilder};
use redis::{RedisResult, TlsCertificates};

use super::Endpoint;
use super::trust::AMAZON_RDS;
use crate::config::Secret;

impl Endpoint {
    /// A client of Redis.
    pub fn redis_client(&self, url: &Secret) -> RedisResult<redis::Client> {
        match self.redis_certificates(url) {
            Some(certificates) => redis::Client::build_with_tls(url.expose(), certificates),
            None => redis::Client::open(url.expose()),
        }
    }

    /// What a client of Redis is to trust in place of its own, where that is to be more.
    pub fn redis_certificates(&self, url: &Secret) -> Option<TlsCertificates> {
        let authorities = self.trusted.as_ref().filter(|_| url.expose().starts_with("rediss:"))?;
        let root_cert = Some(authorities.with_public_ones().into_bytes());
        Some(TlsCertificates { client_tls: None, root_cert })
    }

    /// A connection to the broker, called `name` in its console, without heartbeats.
    pub async fn amqp_connection(&self, url: &Secret, name: &str) -> lapin::Result<Connection> {
        let mut uri: AMQPUri = url.expose().parse().map_err(|_| std::io::Error::other("AMQP_URL is malformed"))?;
        uri.query.heartbeat = Some(0);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let cert_chain = self.trusted.as_ref().map(|authorities| authorities.as_pem().to_owned());
        let tls = OwnedTLSConfig { identity: None, cert_chain };
        let runtime = lapin::runtime::default_runtime()?;
        Connection::connect_uri_with_config(uri, properties, tls, runtime).await
    }

    /// The options of a client of MySQL: over TCP, since a socket that the server names may lead to another one on this machine,
    /// and over TLS where the address asks for it.
    pub fn mysql_options(&self, url: &Secret) -> Result<OptsBuilder, mysql_async::Error> {
        let opts = Opts::from_url(url.expose())?;
        let tls = opts.ssl_opts().map(|tls| {
            let own = self.trusted.iter().map(|authorities| authorities.as_pem().as_bytes().to_vec().into());
            tls.clone().with_root_certs([AMAZON_RDS.as_bytes().into()].into_iter().chain(own).collect())
        });
        Ok(OptsBuilder::from_opts(opts).ssl_opts(tls).prefer_socket(false))
    }
}
