//! A worker's registration in etcd, as commands do it: their flags, and what they log of it.

use crate::Failure;
use anyhow::Context;
use homing_backends::etcd::{Claim, Registrar};
use homing_runtime::replication::port::{PortError, Reach};
use homing_runtime::settings::is_group;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// The flags that say where etcd is, and who we are.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "etcd")]
pub(crate) struct Flags {
    /// Register in etcd too, there; several are one cluster, and tried in turn
    #[arg(long = "etcd", value_name = "URL", value_delimiter = ',')]
    urls: Vec<String>,
    /// Whose worker it is: the routers' discovery.group
    #[arg(long, value_name = "NAME", default_value = "default")]
    group: String,
    /// etcd's user
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// A file whose first line is the password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// Whom to believe about etcd's certificate [default: whom the system believes]
    #[arg(long, value_name = "FILE")]
    etcd_ca_file: Option<PathBuf>,
    /// The certificate shown to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_key_file")]
    etcd_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "etcd_cert_file")]
    etcd_key_file: Option<PathBuf>,
}

/// A registration, and what was said of it the last time.
pub(crate) struct Registration {
    registrar: Registrar,
    said: Option<String>,
}

impl Flags {
    /// Whether etcd is asked for.
    pub(crate) fn is_given(&self) -> bool {
        !self.urls.is_empty()
    }

    /// The registration of a worker, by the keys of `[[workers]]`; `None` where no etcd is named. Where etcd refuses us
    /// that is known here.
    pub(crate) async fn registration(
        &self,
        worker: &Value,
        every: Duration,
        claim: Claim,
    ) -> Result<Option<Registration>, Failure> {
        if !self.is_given() {
            return Ok(None);
        }
        if !is_group(&self.group) {
            return Err(Failure::Usage("--group must be 1 to 63 of a-z, 0-9 and -".to_owned()));
        }
        let reach = Reach {
            urls: self.urls.clone(),
            user: self.etcd_user.clone(),
            password_file: self.etcd_password_file.clone(),
            ca_file: self.etcd_ca_file.clone(),
            cert_file: self.etcd_cert_file.clone(),
            key_file: self.etcd_key_file.clone(),
        };
        let registrar = Registrar::new(reach, &self.group, worker, every, claim)
            .context("the worker can't be registered in etcd")?;
        match registrar.try_out().await {
            Ok(()) | Err(PortError::Unreachable { .. }) => {}
            Err(error) => Err(error).context("the worker can't be registered in etcd")?,
        }
        Ok(Some(Registration { registrar, said: None }))
    }
}

impl Registration {
    /// Says that the worker is well.
    pub(crate) async fn keep(&mut self) {
        match self.registrar.keep().await {
            Ok(false) if self.said.is_none() => {}
            Ok(_) => {
                tracing::info!("the worker is registered in etcd");
                self.said = None;
            }
            Err(error) => {
                // Once, not each time.
                let why = error.to_string();
                if self.said.as_ref() != Some(&why) {
                    tracing::warn!(why, "the worker can't be registered in etcd");
                }
                self.said = Some(why);
            }
        }
    }

    /// Takes it back.
    pub(crate) async fn withdraw(mut self) {
        if let Err(error) = self.registrar.withdraw().await {
            tracing::debug!(%error, "the registration could not be taken back: it will end by itself");
        }
    }
}
